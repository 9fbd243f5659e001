"""Servers with echo services, and clients that send exact bytes."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.serving.echo import EchoService
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer

PATIENCE_S = 60.0
TOKEN = "the-token-of-the-tests"
ACTION = b'{"episode_id":"a","obs":[1,2]}'


@contextmanager
def serving(service: Any = None, limits: Limits | None = None, **settings: Any) -> Iterator[PolicyServer]:
    """A running server; afterwards it leaves no thread and no connection."""
    before = set(threading.enumerate())
    with PolicyServer(service or EchoService(limits, record=True), **settings) as server:
        yield server
    assert server.metrics.connections == 0
    assert server.metrics.streams == 0
    assert set(threading.enumerate()) <= before


@dataclass
class Answer:
    """A response: its status, headers by lower-case name, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def ask(server: PolicyServer, path: str, body: bytes | None = None, method: str = "", **headers: str) -> Answer:
    """Sends one request on a new connection; underscores in the names of headers become hyphens."""
    connection = http.client.HTTPConnection(*place(server), timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, body, named)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def place(server: PolicyServer) -> tuple[str, int]:
    """Address and port of a server."""
    parts = urlsplit(server.address)
    assert parts.hostname is not None
    assert parts.port is not None
    return ("127.0.0.1" if parts.hostname == "0.0.0.0" else parts.hostname), parts.port


@contextmanager
def connected(server: PolicyServer) -> Iterator[socket.socket]:
    """A bare connection."""
    with socket.create_connection(place(server), timeout=PATIENCE_S) as found:
        yield found


@contextmanager
def bare_stream(server: PolicyServer) -> Iterator[socket.socket]:
    """A connection that has become a WebSocket, for `frame`."""
    with connected(server) as found:
        found.sendall(HANDSHAKE)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += found.recv(1)
        assert answer.startswith(b"HTTP/1.1 101")
        yield found


def frame(opcode: int, data: bytes = b"") -> bytes:
    """A frame of a client, masked with zeros."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xff" + len(data).to_bytes(8, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + data


HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def head(path: str = "/v1/get_action", length: int | str = len(ACTION), **headers: str) -> bytes:
    """The head of a POST request that declares a body of this length."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """All data that the server sends until it closes or resets the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def answer_to(server: PolicyServer, sent: bytes) -> bytes:
    """All that the server sends in a new connection with these bytes, until it closes the connection."""
    with connected(server) as connection:
        connection.sendall(sent)
        return read_all(connection)


def send_until_it_breaks(connection: socket.socket, data: bytes) -> None:
    """Sends the same data until the server resets the connection."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            connection.sendall(data)
    except ConnectionError:
        return
    raise AssertionError("the server has not closed the connection")


class LaterService(EchoService):
    """Answers `get_action` on request; keeps the pending requests in `waiting`."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []

    def start(self) -> None:
        """Notes the event loop."""
        self.loop = asyncio.get_running_loop()

    def call(self, verb: str, request: Any, client: Any) -> Any:
        """Returns futures of actions."""
        if verb != "get_action":
            return super().call(verb, request, client)
        future = self.loop.create_future()
        self.waiting.append((request, future))
        return future

    def close(self) -> None:
        """Ends the pending requests."""
        for _, future in self.waiting:
            if not future.done():
                future.set_exception(RuntimeError("closed"))

    def answer(self, index: int, result: Any) -> None:
        """Answers a request, from the thread of the test."""
        future = self.waiting[index][1]
        failed = isinstance(result, BaseException)
        self.loop.call_soon_threadsafe(future.set_exception if failed else future.set_result, result)


class FailingService(EchoService):
    """Raises an error for every action."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def call(self, verb: str, request: Any, client: Any) -> Any:
        """Raises the error."""
        if verb == "get_action":
            raise self._error
        return super().call(verb, request, client)


class Transport(asyncio.Transport):
    """Records the written data; `unsent` bytes wait, as if the client did not read."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.unsent, self.aborted, self.written = 0, False, b""

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True
