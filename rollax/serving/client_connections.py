"""One connection of a client to a policy server, over HTTP or a WebSocket, with one request at a time."""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from rollax.errors import ConfigError, RequestError, not_installed
from rollax.serving.protocol import QUERIES

MAX_ANSWER = 1 << 30
"""Maximum bytes of an answer; the weights of a policy can be large."""
_MAX_HEAD = 1 << 20
"""Maximum bytes of the head of an HTTP answer, of a WebSocket's handshake, and of data without a request."""
_CHUNK = 1 << 16
_CONNECTING_S = 10.0
_SECURE = {"http": False, "https": True, "ws": False, "wss": True}

Page = tuple[int, Any, bytes]
"""Status, headers and content."""


class ConnectionLost(Exception):  # noqa: N818  it is handled by sending the request again
    """The connection failed before the answer arrived."""


class Answer(NamedTuple):
    """The answer to a request: status, decoded body (None if it is not JSON or msgpack), seconds of Retry-After."""

    status: int
    body: Any
    retry_after: float | None = None


class Refused(Exception):  # noqa: N818  it carries an answer
    """The server answered the opening handshake of a WebSocket with an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(frozen=True)
class Address:
    """The address of a server, and how to connect to it.

    Attributes:
        stream: whether requests are sent over a WebSocket.
        context: TLS context; None for plain TCP.
        headers: headers of every request.
    """

    text: str
    host: str
    port: int
    stream: bool
    context: ssl.SSLContext | None
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, token: str | None = None, ca_file: str | None = None) -> Address:
        """The address in a URL; ConfigError for a malformed one. `token`, `ca_file`: as for `PolicyClient`."""
        try:
            parts = urlsplit(text)
            host, port, secure = parts.hostname, parts.port, _SECURE[parts.scheme]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise _no_address(text) from error
        if not host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
            raise _no_address(text)
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable() and token):
            raise ConfigError("The token is malformed.", "token of PolicyClient", type(token).__name__).expected(
                "a string of printable ASCII characters",
                "pass the content of the server's token file, without its newline",
            )
        if ca_file is not None and not secure:
            expected = "an address https://HOST:PORT or wss://HOST:PORT"
            raise ConfigError(
                "ca_file requires an address with TLS.", "ca_file of PolicyClient", f"{ca_file}, with {text}"
            ).expected(expected, "leave ca_file out, or use the address of a server with a certificate")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            context = ssl.create_default_context(cafile=ca_file) if secure else None
        except (OSError, ssl.SSLError, TypeError) as error:
            got, fix = f"{ca_file} ({error})", "check the path; the file has lines -----BEGIN CERTIFICATE-----"
            raise ConfigError(
                "The certificates of the authorities to trust cannot be loaded.", "ca_file of PolicyClient", got
            ).expected("a file in PEM format, or None for the authorities of the system", fix) from error
        return cls(text.rstrip("/"), host, port or (443 if secure else 80), parts.scheme[0] == "w", context, headers)

    def connect(self, deadline: float) -> Connection:
        """A new connection. Raises ConnectionLost, Refused, or RequestError for an untrusted certificate."""
        return StreamConnection(self, deadline) if self.stream else HttpConnection(self, deadline)

    def socket(self, deadline: float) -> socket.socket:
        """A connected socket."""
        plain = None
        try:
            limit = max(min(deadline - time.monotonic(), _CONNECTING_S), 0.001)
            plain = socket.create_connection((self.host, self.port), limit)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return plain if self.context is None else self.context.wrap_socket(plain, server_hostname=self.host)
        except BaseException as error:
            if plain is not None:
                plain.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                expected = "a certificate for this host, of an authority that this machine trusts"
                raise RequestError(
                    "The certificate of the policy server is not trusted.", self.text, error.verify_message, status=503
                ).expected(expected, "pass the authority's certificate as ca_file") from error
            if isinstance(error, OSError):
                raise ConnectionLost(str(error)) from error
            raise


def _no_address(text: Any) -> ConfigError:
    return ConfigError("This is not an address of a policy server.", "address of PolicyClient", text).expected(
        "http://HOST:PORT, https://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT",
        "use the address that the server printed; ws:// is the faster one",
    )


class HttpConnection:
    """HTTP/1.1 with JSON, kept open between requests."""

    def __init__(self, address: Address, deadline: float) -> None:
        self._headers = {**address.headers, "Content-Type": "application/json"}
        self._http = http.client.HTTPConnection(address.host, address.port)
        self._socket = address.socket(deadline)
        self._reading = _Reading(self._socket)
        self._http.sock = self._reading

    def request(self, verb: str, message: bytes, deadline: float) -> Answer:
        """Sends a request and returns its answer; ConnectionLost if there is none by the deadline."""
        path = "/v1" if verb == "hello" else f"/v1/{verb}"
        if verb in QUERIES:
            return self.as_answer(self.fetch("GET", path, deadline))
        return self.as_answer(self.fetch("POST", path, deadline, message))

    @staticmethod
    def as_answer(page: Page) -> Answer:
        """The answer in a page; its body is None if the content is not JSON, such as the error page of a proxy."""
        status, headers, content = page
        return Answer(status, _decoded(content, msgspec.json), _seconds(headers.get("Retry-After")))

    def fetch(
        self,
        method: str,
        path: str,
        deadline: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Status, headers and content of a page."""
        try:
            self._reading.begin(deadline)
            self._http.request(method, path, body, dict(self._headers if headers is None else headers))
            response = self._http.getresponse()
            content = response.read(MAX_ANSWER + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: such as a negative length
            raise ConnectionLost(str(error) or type(error).__name__) from error
        if len(content) > MAX_ANSWER:
            raise ConnectionLost(f"an answer of more than {MAX_ANSWER} bytes")
        if response.length:  # unlike `read()`, `read(n)` does not raise IncompleteRead
            raise ConnectionLost(f"an answer that ends {response.length} bytes early")
        if response.will_close:
            self.close()
        return response.status, response.headers, content

    def alive(self) -> bool:
        """Whether the connection, after some idle time, is still open."""
        # Nothing may arrive on an idle connection: neither data nor the end of the stream.
        return self._http.sock is not None and _arrived(self._socket) is None

    def close(self) -> None:
        self._http.close()
        self._socket.close()


class StreamConnection:
    """A WebSocket at /v1/stream with msgpack. The package `websockets` encodes the frames, without its threads."""

    def __init__(self, address: Address, deadline: float) -> None:
        try:
            from websockets.client import ClientProtocol
            from websockets.protocol import State
            from websockets.uri import parse_uri
        except ImportError as error:
            feature, package = "A policy client over WebSockets", "websockets"
            raise not_installed(feature, error, where=address.text, package=package, extra="client") from error
        self._handshake = 0  # bytes received
        self._answers: list[bytes] = []
        self._parts = bytearray()
        self._open = State.OPEN
        self._protocol = ClientProtocol(parse_uri(f"{address.text}/v1/stream"), max_size=MAX_ANSWER)
        self._socket = address.socket(deadline)
        try:
            request = self._protocol.connect()
            request.headers.update(address.headers)
            self._protocol.send_request(request)
            self._send()
            while self._protocol.state is not self._open:
                self._receive(deadline)
        except BaseException:
            self._socket.close()
            raise

    def request(self, verb: str, message: bytes, deadline: float) -> Answer:
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._protocol.send_binary(message)
            self._send()
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        while not self._answers:
            self._receive(deadline)
        answer = _decoded(self._answers.pop(), msgspec.msgpack)
        if not isinstance(answer, dict) or "id" not in answer:
            raise ConnectionLost("an answer that is no msgpack, or has no id")
        del answer["id"]  # there is one request at a time
        if "error" not in answer:
            return Answer(200, answer)
        status = answer.get("status")
        if not isinstance(status, int) or status < 400:
            status = 500
        return Answer(status, answer, _seconds(answer.get("retry_after")))

    def alive(self) -> bool:
        size = 0
        try:
            while data := _arrived(self._socket):
                self._take(data)
                size += len(data)
                if self._answers or self._parts or size > _MAX_HEAD:  # without a request
                    return False
        except (ConnectionLost, OSError):
            return False
        return data is None and self._protocol.state is self._open

    def close(self) -> None:
        if self._protocol.state is self._open:
            try:
                self._socket.settimeout(1.0)
                self._protocol.send_close(1000)
                self._send()
            except OSError:
                pass  # the connection is already closed
        self._socket.close()

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)

    def _receive(self, deadline: float) -> None:
        try:
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        self._take(data)
        if self._protocol.state is not self._open:
            self._handshake += len(data)
            if self._handshake > _MAX_HEAD:
                raise ConnectionLost(f"a handshake of more than {_MAX_HEAD} bytes")

    def _take(self, data: bytes) -> None:
        """Processes received data: answers, pings, and the end of the stream."""
        protocol = self._protocol
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        for event in protocol.events_received():
            if hasattr(event, "status_code"):
                self._check_handshake(event)
            elif event.opcode <= 2:  # a message, or a part of one  # pyright: ignore[reportAttributeAccessIssue]
                self._parts += event.data  # pyright: ignore[reportAttributeAccessIssue]
                if event.fin:  # pyright: ignore[reportAttributeAccessIssue]
                    self._answers.append(bytes(self._parts))
                    self._parts.clear()
        try:
            self._send()
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if protocol.handshake_exc is not None:
            raise ConnectionLost(str(protocol.handshake_exc))
        if protocol.close_expected() or not data:
            raise ConnectionLost(protocol.close_reason or "closed by the server")

    def _check_handshake(self, response: Any) -> None:
        if response.status_code == 101:
            return
        body = _decoded(response.body or b"", msgspec.json)
        raise Refused(Answer(response.status_code, body, _seconds(response.headers.get("Retry-After"))))


Connection = HttpConnection | StreamConnection


def _arrived(sock: socket.socket) -> bytes | None:
    """The data that has arrived; empty at the end of the stream, None without data."""
    try:
        sock.settimeout(0.0)
        return sock.recv(_CHUNK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return None
    except OSError:
        return b""


def _left(deadline: float) -> float:
    """The seconds until the deadline; TimeoutError after it, even if data has arrived."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _decoded(content: bytes, module: Any) -> Any:
    """The value in JSON or msgpack; None for other content."""
    try:
        return module.decode(content)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError):
        return None


def _seconds(text: Any) -> float | None:
    try:
        seconds = max(float(text), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


class _Reading(io.RawIOBase):
    """The socket for `http.client`, with one deadline and one limit of bytes for all reads of an answer.

    A socket's own timeout starts again with each read: an answer of one byte a second would never end.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._connected, self._deadline, self._left = connected, 0.0, 0

    def readable(self) -> bool:
        return True

    def begin(self, deadline: float) -> None:
        """Begins a request and its answer."""
        self._deadline, self._left = deadline, MAX_ANSWER + _MAX_HEAD
        self._connected.settimeout(_left(deadline))

    def sendall(self, data: bytes) -> None:
        self._connected.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        return io.BufferedReader(self, _CHUNK)

    def readinto(self, buffer: Any) -> int:
        self._connected.settimeout(_left(self._deadline))
        size = self._connected.recv_into(buffer)
        self._left -= size
        if self._left < 0:
            raise OSError(f"an answer of more than {MAX_ANSWER} bytes")
        return size

    def close(self) -> None:
        """Does nothing: `http.client` calls it after each answer; `HttpConnection` closes the socket."""
