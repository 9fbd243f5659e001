"""Attacks on a policy server, one per function; none of them may leave resources behind."""

import contextlib
import json
import pickle
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from benchmarks.serving.load import frame

HANDSHAKE = (
    "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
)
_TEXT, _BINARY = 0x81, 0x82
_TIMEOUT_S = 30.0


class Attacker:
    """Attacks one server.

    Args:
        address: address of the server.
        token: its token, for attacks with a valid token.
        seed: seed of the order of the attacks.
    """

    def __init__(self, address: str, token: str, seed: int) -> None:
        self._place, self._token = urlsplit(address), token
        self._rng = random.Random(seed)
        self._attacks: tuple[Callable[[], None], ...] = (
            self.garbage,
            self.wrong_token,
            self.foreign,
            self.wrong_bodies,
            self.vanishing,
            self.vanishing_stream,
            self.wrong_messages,
            self.no_reader,
            self.idle_connections,
            self.wrong_episodes,
        )
        self.count = 0

    def attack(self) -> None:
        """Does one attack."""
        with contextlib.suppress(OSError):
            self._rng.choice(self._attacks)()
        self.count += 1

    def garbage(self) -> None:
        """Data that is not HTTP."""
        self._send(self._rng.randbytes(self._rng.randrange(1, 3000)))

    def wrong_token(self) -> None:
        """A wrong token, and an endless body."""
        for _ in range(3):
            self._send(self._request("get_action", b"x" * 1000, token="wrong"))
        self._send(self._request("get_action", b"x" * 10_000, token="wrong", length=2**40))

    def foreign(self) -> None:
        """A foreign Host and Origin."""
        self._send(self._request("get_action", b"{}", host="evil.example"))
        self._send(self._request("get_action", b"{}", extra="Origin: https://evil.example\r\n"))

    def wrong_bodies(self) -> None:
        """Pickles, deep, truncated and oversized bodies, NaN."""
        start = b'{"episode_id":"none","obs":'
        for body in (
            pickle.dumps([1]),
            start + b"[" * 100_000,
            start + b"NaN}",
            start + b"1e999}",
            start,
            b"",
            b"\xff",
        ):
            self._send(self._request("get_action", body))
        self._send(self._request("get_action", b"{", length=2**30))
        self._send(self._request("get_action", b"x" * 40_000, extra=f"X: {'y' * 40_000}\r\n"))

    def wrong_episodes(self) -> None:
        """Unknown, duplicate and ended episodes, and ends without an action."""
        name = f"attack-{self._rng.random()}"
        for verb, body in (
            ("get_action", {"episode_id": "unknown", "obs": [0, 0, 0, 0]}),
            ("start_episode", {"episode_id": name}),
            ("start_episode", {"episode_id": name}),
            ("get_action", {"episode_id": name, "obs": [0, 0]}),
            ("get_action", {"episode_id": name, "obs": "x"}),
            ("log_returns", {"episode_id": name, "reward": 1.0}),
            ("end_episode", {"episode_id": name, "obs": [0, 0, 0, 0]}),
            ("end_episode", {"episode_id": name, "obs": [0, 0, 0, 0]}),
        ):
            self._send(self._request(verb, json.dumps(body).encode()))

    def vanishing(self) -> None:
        """Clients that disconnect in the middle of a request, some with a reset."""
        request = self._request("get_action", b'{"episode_id":"none","obs":[0,0,0,0]}')
        with self._connect() as connection:
            connection.sendall(request[: self._rng.randrange(len(request))])
            if self._rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def vanishing_stream(self) -> None:
        """A client that starts episodes on a stream, requests actions and disconnects."""
        with self._stream() as connection:
            for number in range(20):
                name = f"lost-{self._rng.random()}"
                start = {"id": number, "verb": "start_episode", "episode_id": name}
                ask = {"id": number, "verb": "get_action", "episode_id": name, "obs": [0.0, 0.0, 0.0, 0.0]}
                for message in (start, ask):
                    connection.sendall(frame(_TEXT, json.dumps(message).encode()))
            connection.sendall(frame(_TEXT, b"{}")[:3])

    def wrong_messages(self) -> None:
        """Invalid messages, until the server closes the stream."""
        with self._stream() as connection:
            for _ in range(20):
                connection.sendall(frame(self._rng.choice((_TEXT, _BINARY)), self._rng.randbytes(100)))
            connection.sendall(self._rng.randbytes(1000))
            connection.recv(65536)

    def no_reader(self) -> None:
        """A client that sends requests for a while without reading the responses."""
        with self._stream() as connection:
            connection.settimeout(2.0)
            message = frame(_TEXT, b'{"id":1,"verb":"hello"}')
            for _ in range(2000):
                connection.sendall(message)

    def idle_connections(self) -> None:
        """Connections that send nothing, or one byte at a time."""
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(self._connect()) for _ in range(20)]
            for byte in b"POST /v1/get":
                for connection in found:
                    connection.sendall(bytes([byte]))
                time.sleep(0.02)

    def _connect(self) -> socket.socket:
        return socket.create_connection((self._place.hostname, self._place.port), timeout=_TIMEOUT_S)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[socket.socket]:
        with self._connect() as connection:
            connection.sendall(HANDSHAKE.format(token=self._token).encode())
            connection.recv(65536)
            yield connection

    def _send(self, data: bytes) -> bytes:
        with self._connect() as connection:
            connection.sendall(data)
            return connection.recv(65536)

    def _request(
        self,
        verb: str,
        body: bytes,
        *,
        token: str | None = None,
        host: str = "localhost",
        length: int | None = None,
        extra: str = "",
    ) -> bytes:
        size = len(body) if length is None else length
        head = f"POST /v1/{verb} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n{extra}"
        return f"{head}Authorization: Bearer {token or self._token}\r\n\r\n".encode() + body
