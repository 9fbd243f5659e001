"""Clients of a server whose answers never end, are nested too deeply, or are no answers."""

import base64
import contextlib
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.frames import Opcode

from rollax.errors import RequestError
from rollax.serving.client import PolicyClient
from rollax.serving.remote_inference import converter
from tests.serving.fake_server import BOX, DISCRETE, FakeServer, over_http
from tests.serving.service_session import refused

HEAD = b"HTTP/1.1 200 OK\r\n"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@contextmanager
def hostile(answer: bytes, then: bytes = b"", *, stream: bool = False) -> Iterator[str]:
    """The address of a server that answers with these bytes, and then with others until the client disconnects."""

    def handle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = connection.recv(65536)
            if stream:
                (key,) = re.findall(rb"(?i)sec-websocket-key: (\S+)", request)
                accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
                head = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                connection.sendall(head + accept + b"\r\n\r\n")
                connection.recv(65536)
            connection.sendall(answer)
            while then:
                connection.sendall(then)
            connection.recv(65536)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"{'ws' if stream else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def server_frame(opcode: int, data: bytes = b"", fin: int = 0x80) -> bytes:
    """A frame of a server."""
    return bytes([fin | opcode, 126]) + len(data).to_bytes(2, "big") + data


@pytest.mark.short("body", "parts")
@pytest.mark.parametrize(
    ("answer", "then", "stream"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, False),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 100, False),
        (HEAD + b"Content-Length: 1000000000\r\n\r\n", b" ", False),
        (HEAD + b"\r\n", b" ", False),
        (b"", server_frame(Opcode.PING) * 100, True),
        (server_frame(Opcode.BINARY, fin=0), server_frame(Opcode.CONT, fin=0) * 100, True),
    ],
    ids=["interim", "trailers", "body", "body without a length", "pings", "parts"],
)
def test_an_answer_that_never_ends_times_out(answer, then, stream):
    with hostile(answer, then, stream=stream) as address, PolicyClient(address, timeout=0.5) as client:
        refused(503, client.hello)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":"\xff"}', b"{", b"1"])
@pytest.mark.parametrize("status", [200, 401])
def test_content_over_http_that_cannot_be_read(content, status):
    answer = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content
    with hostile(answer) as address, PolicyClient(address, timeout=60.0) as client:
        refused(status, client.hello)


UNREADABLE = (b"\x91" * 50_000, b"\x81\xa1\xff\x01", b"\xa1x", b"\x80", b"\xc1", b"\x81\x90\x01")


CHUNK_OF_MINUS_5 = HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n"
FRAMES = [(server_frame(Opcode.BINARY, content), True) for content in UNREADABLE]


@pytest.mark.parametrize(("answer", "stream"), [*FRAMES, (CHUNK_OF_MINUS_5, False)])
def test_an_answer_that_cannot_be_read(answer, stream):
    with hostile(answer, stream=stream) as address, PolicyClient(address, timeout=0.5) as client:
        with pytest.raises(RequestError):
            client.hello()


POLICY = {"observation_space": BOX, "action_space": DISCRETE, "recurrent": False}


@pytest.mark.parametrize(
    "changed",
    [
        {"limits": None},
        {"limits": {}},
        {"limits": {"max_body_bytes": "x"}},
        {"policies": {}},
        {"policies": [1]},
        {"multi_agent": True, "policies": {"a": None}},
        *(
            {"policies": {"a": {**POLICY, "action_space": space}}}
            for space in (None, {}, {**BOX, "dtype": "S2147483647"}, {**BOX, "dtype": "O"}, {**BOX, "dtype": 1})
        ),
    ],
)
def test_a_malformed_description_is_refused(changed):
    fake = FakeServer()
    answer = fake.answer("hello", {})
    assert answer is not None
    fake.answer = lambda *_: (200, {**answer[1], **changed}, {})
    with over_http(fake) as address, PolicyClient(address) as client:
        refused(502, client.start_episode)


def test_a_description_without_limits_is_refused_with_local_inference():
    with over_http(FakeServer()) as address, PolicyClient(address, inference_mode="local") as client:
        for _ in range(2):
            refused(502, client.start_episode)


@pytest.mark.parametrize(
    ("space", "action"),
    [(DISCRETE, "x"), (DISCRETE, None), (DISCRETE, [1]), (BOX, [[1], 2]), (BOX, {"dtype": "O"}), (BOX, {"data": "x"})],
)
def test_a_malformed_action_is_refused(space, action):
    fake = FakeServer(action_space=space)
    with over_http(fake) as address, PolicyClient(address) as client:
        episode = client.start_episode()
        for body in ({"action": action, "version": 1}, {"action": 1}, {}):
            fake.faults.append((200, body, {}))
            refused(502, client.get_action, episode, [0.0, 0.0])


def test_errors_of_a_policy_mapping_are_kept():
    policies = {"a": {"action_space": DISCRETE}, "b": {"action_space": BOX}}
    convert = converter({"multi_agent": True, "policies": policies}, {"agent": "a"}.__getitem__)
    assert convert({"agent": 1}) == {"agent": 1}
    with pytest.raises(KeyError):
        convert({"other": 1})
