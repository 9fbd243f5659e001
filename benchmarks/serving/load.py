"""Clients of a policy server in one process: each sends its next message after the response to the last one.

Messages are prepared and responses are only counted, so that the clients use little processor time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
import numpy as np

Transport = Literal["http", "json", "msgpack", "pickled"]
"""HTTP with JSON, the stream with JSON or msgpack, or HTTP with pickled commands."""

_HANDSHAKE = (
    "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_HEAD_END = b"\r\n\r\n"
_MASKED, _TEXT, _BINARY = 0x80, 0x81, 0x82
_PING, _PONG = b"\x89", 0x8A
_STEPS = 20
_SHORT, _MEDIUM, _LONG = 126, 2**16, 127


class Load:
    """A number of clients on one server.

    Args:
        address: address of the server.
        transport: transport of the messages.
        clients: number of connections.
        episodes: number of episodes of each client, all in one message.
        play: whether clients report rewards and play consecutive episodes of 20 steps; only the latencies of actions
            count.
    """

    def __init__(
        self, address: str, transport: Transport, clients: int, episodes: int = 1, *, play: bool = False
    ) -> None:
        self._address, self._transport, self._play = address, transport, play
        self._loop = _new_loop()
        self._episodes = episodes
        self._clients = [self._loop.run_until_complete(self._connect(number)) for number in range(clients)]

    def run(self, seconds: float) -> tuple[float, list[float]]:
        """Sends for some seconds; returns actions per second, and the latency of each response in seconds."""
        latencies: list[float] = []
        started = time.perf_counter()
        for client in self._clients:
            client.begin(latencies, started + seconds, self._loop.create_future())
        self._loop.run_until_complete(self._done())
        took = time.perf_counter() - started
        return len(latencies) * self._episodes / took, latencies

    async def _done(self) -> None:
        for client in self._clients:
            await client.done()

    def close(self) -> None:
        """Closes the connections."""
        for client in self._clients:
            client.transport.close()
        self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.close()

    async def _connect(self, number: int) -> _Client:
        parts = urlsplit(self._address)
        make: Callable[[], _Client] = _HttpClient if self._transport in ("http", "pickled") else _StreamClient
        _, client = await self._loop.create_connection(make, parts.hostname or "", parts.port or 0)
        run = secrets.token_hex(4)
        names = [f"episode-{run}-{number}-{i}" for i in range(self._episodes)]
        if isinstance(client, _StreamClient):
            await client.call(_HANDSHAKE.encode())
            client.open = True
        if self._play:
            client.messages = self._episodes_of(f"{run}-{number}")
            return client
        for name in names:
            await client.call(self._message("start_episode", {"episode_id": name}))
        rng = np.random.default_rng(number)
        obs = rng.uniform(-0.2, 0.2, (self._episodes, 4)).astype(np.float32)
        # Five digits, as a game would send them.
        values = [self._value(row) for row in obs]
        if self._episodes == 1:
            message = self._message("get_action", {"episode_id": names[0], "obs": values[0]})
        else:
            message = self._message("get_actions", {"observations": dict(zip(names, values, strict=True))})
        client.messages = itertools.repeat((message, True))
        return client

    def _episodes_of(self, name: str) -> Iterator[tuple[bytes, bool]]:
        """Yields the messages of one episode after another, and whether they request an action."""
        obs = [0.01, -0.02, 0.03, -0.04]
        for number in itertools.count():
            episode = {"episode_id": f"{name}-{number}"}
            yield self._message("start_episode", episode), False
            for _ in range(_STEPS):
                yield self._message("get_action", {**episode, "obs": obs}), True
                yield self._message("log_returns", {**episode, "reward": 1.0}), False
            yield self._message("end_episode", {**episode, "obs": obs}), False

    def _value(self, obs: np.ndarray) -> Any:
        if self._transport == "pickled":
            return obs
        if self._transport == "msgpack":
            return {"dtype": obs.dtype.str, "shape": obs.shape, "data": obs.tobytes()}
        return [round(float(x), 5) for x in obs]

    def _message(self, verb: str, body: dict[str, Any]) -> bytes:
        if self._transport == "pickled":
            command = {"command": verb.upper(), "episode_id": body["episode_id"], "observation": body.get("obs")}
            content = pickle.dumps(command)
            return f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        if self._transport == "http":
            content = json.dumps(body, separators=(",", ":")).encode()
            head = f"POST /v1/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
        message = {"id": 1, "verb": verb, **body}
        if self._transport == "json":
            return frame(_TEXT, json.dumps(message, separators=(",", ":")).encode())
        return frame(_BINARY, msgspec.msgpack.encode(message))


class _Client(asyncio.Protocol):
    """One connection with one pending request."""

    def __init__(self) -> None:
        self.messages: Iterator[tuple[bytes, bool]] = iter(())
        self._data = bytearray()
        self._reply: asyncio.Future[bytes] | None = None
        self._latencies: list[float] = []
        self._sent = self._until = 0.0
        self._counts = False
        self.ended: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        error = ConnectionError(f"the server has closed the connection: {exc}")
        for future in (self._reply, self.ended):
            if future is not None and not future.done():
                future.set_exception(error)

    async def call(self, data: bytes) -> bytes:
        """Sends bytes and returns the response."""
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return await self._reply

    def begin(self, latencies: list[float], until: float, ended: asyncio.Future[None]) -> None:
        """Sends messages one after another until that time."""
        self._latencies, self._until, self.ended = latencies, until, ended
        self._send_next()

    def _send_next(self) -> None:
        message, self._counts = next(self.messages)
        self._sent = time.perf_counter()
        self.transport.write(message)

    async def done(self) -> None:
        """Returns when the response to the last message has arrived."""
        assert self.ended is not None
        await self.ended

    def data_received(self, data: bytes) -> None:
        self._data += data
        size = self.size()
        if not size:
            return
        reply = bytes(self._data[:size])
        del self._data[:size]
        if self._reply is not None:
            waiting, self._reply = self._reply, None
            waiting.set_result(reply)
            return
        assert self.ended is not None
        now = time.perf_counter()
        if b'"error"' in reply or b"\xa5error" in reply:
            self.ended.set_exception(RuntimeError(f"the server has refused: {reply[:500]!r}"))
            return
        if self._counts:
            self._latencies.append(now - self._sent)
        if now < self._until:
            self._send_next()
        else:
            self.ended.set_result(None)

    def size(self) -> int:
        """The length of the first response in the data; 0 if it is not complete."""
        raise NotImplementedError


class _HttpClient(_Client):
    def size(self) -> int:
        data = self._data
        end = data.find(_HEAD_END)
        if end < 0:
            return 0
        start = data.find(b"content-length: ") + len(b"content-length: ")
        size = end + len(_HEAD_END) + int(data[start : data.find(b"\r", start)])
        return size if size <= len(data) else 0


class _StreamClient(_Client):
    open = False

    def data_received(self, data: bytes) -> None:
        if self.open and not self._data and data[:1] == _PING:  # every 20 seconds
            end = 2 + data[1]
            self.transport.write(frame(_PONG, data[2:end]))
            data = data[end:]
        if data:
            super().data_received(data)

    def size(self) -> int:
        data = self._data
        if not self.open:
            return len(data) if data.endswith(_HEAD_END) else 0
        if len(data) < 2:
            return 0
        size = 2 + data[1]
        if data[1] == _SHORT:
            size = 4 + int.from_bytes(data[2:4])
        elif data[1] == _LONG:
            size = 10 + int.from_bytes(data[2:10])
        return size if size <= len(data) else 0


def frame(kind: int, data: bytes) -> bytes:
    """Returns a frame of a client; its mask is zero, so that the data is unchanged."""
    if len(data) < _SHORT:
        length = bytes([_MASKED | len(data)])
    elif len(data) < _MEDIUM:
        length = bytes([_MASKED | _SHORT]) + len(data).to_bytes(2)
    else:
        length = bytes([_MASKED | _LONG]) + len(data).to_bytes(8)
    return bytes([kind]) + length + bytes(4) + data


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
