"""/v1/stream: formats, pending requests, lost connections, and clients that do not read."""

import base64
import json
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.sync.client import ClientConnection, connect

from benchmarks.serving.echo import EchoService
from rollax.errors import RequestError
from rollax.serving import protocol
from rollax.serving import server as server_module
from rollax.serving.connections import StreamConnection
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer
from tests.serving.test_http import BODIES
from tests.serving.wire import (
    ACTION,
    HANDSHAKE,
    PATIENCE_S,
    TOKEN,
    FailingService,
    LaterService,
    answer_to,
    bare_stream,
    connected,
    frame,
    head,
    read_all,
    send_until_it_breaks,
    serving,
)
from tests.waiting import until

ACTION_MESSAGE = b'{"id":1,"verb":"get_action","episode_id":"a","obs":1}'


def open_stream(server: PolicyServer, path: str = "/v1/stream", **settings: Any) -> ClientConnection:
    """A client without compression and pings."""
    address = f"ws{server.address.removeprefix('http')}{path}"
    return connect(address, compression=None, open_timeout=PATIENCE_S, ping_interval=None, **settings)


def received(stream: ClientConnection) -> Any:
    """The next message of the server, in JSON or MessagePack."""
    message = stream.recv(PATIENCE_S)
    return json.loads(message) if isinstance(message, str) else msgspec.msgpack.decode(message)


def answers(stream: ClientConnection) -> bool:
    """Whether the server answers another request."""
    stream.send('{"id":1234,"verb":"health"}')
    return (answer := received(stream))["id"] == 1234 and answer["status"] == "ok"


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.mark.parametrize("verb", protocol.REQUESTS)
def test_a_verb_is_a_message(server, verb):
    body, expected = BODIES[verb]
    server.service.calls.clear()
    with open_stream(server) as stream:
        stream.send(json.dumps({"id": 5, "verb": verb, **body}))
        assert received(stream) == {"id": 5, **expected}
        stream.send(msgspec.msgpack.encode({**body, "verb": verb, "id": -(2**40)}))
        answer = stream.recv(PATIENCE_S)
    assert isinstance(answer, bytes)
    assert msgspec.msgpack.decode(answer) == {"id": -(2**40), **expected}
    for called, request, client in server.service.calls:
        fields = msgspec.to_builtins(msgspec.convert(body, protocol.REQUESTS[verb]))
        assert (called, isinstance(request, protocol.REQUESTS[verb])) == (verb, True)
        assert fields.items() <= msgspec.to_builtins(request).items()
        assert client.startswith("127.0.0.1:")


@pytest.mark.parametrize("early", [frame(Opcode.TEXT, ACTION_MESSAGE), frame(Opcode.PING, b"x"), b"\x81"])
def test_data_before_the_response_to_a_handshake_is_refused(server, early):
    assert answer_to(server, HANDSHAKE + early).startswith(b"HTTP/1.1 400")


def test_handshakes_of_other_versions_than_http_1_1_are_refused(server):
    with connected(server) as connection:
        connection.sendall(head() + ACTION)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert read_all(connection).startswith(b"HTTP/1.1 400")


def test_a_handshake_is_refused_before_the_response_to_the_last_request():
    with serving(LaterService()) as server:
        assert answer_to(server, head() + ACTION + HANDSHAKE) == b""


def test_queries_are_messages_too(server):
    with open_stream(server) as stream:
        for number, verb in enumerate(("hello", "health", "statistics")):
            stream.send(json.dumps({"id": number, "verb": verb}))
            stream.send(msgspec.msgpack.encode({"id": number, "verb": verb}))
            as_json, as_msgpack = received(stream), received(stream)
            assert as_json["id"] == number
            assert as_json.keys() == as_msgpack.keys()
            assert "version" in as_json


def test_a_response_of_many_fields_has_an_id_in_msgpack():
    class Service(EchoService):
        def call(self, verb: str, request: Any, client: Any) -> Any:
            return {str(i): i for i in range(40)} if verb == "statistics" else super().call(verb, request, client)

    with serving(Service()) as server, open_stream(server) as stream:
        stream.send(msgspec.msgpack.encode({"id": 300, "verb": "statistics"}))
        found = received(stream)
    assert (found["id"], found["39"]) == (300, 39)


def test_answers_are_sent_in_the_order_in_which_they_are_ready():
    service = LaterService()
    with serving(service) as server, open_stream(server) as stream:
        for number in range(3):
            stream.send(json.dumps({"id": number, "verb": "get_action", "episode_id": "a", "obs": number}))
        stream.send(json.dumps({"id": 3, "verb": "health"}))
        assert received(stream)["id"] == 3
        for number in (2, 0):
            service.answer(number, protocol.Action(number, 1))
            assert received(stream) == {"id": number, "action": number, "version": 1}
        service.answer(1, RequestError("Lost.", status=410, where="a"))
        answer = received(stream)
    assert (answer["id"], answer["status"], answer["error"]["what"]) == (1, 410, "Lost.")


@pytest.mark.parametrize(
    ("message", "number", "status"),
    [
        ('{"id":1,"verb":"get_action","episode_id":"a"}', 1, 422),
        ('{"id":1,"verb":"fly"}', 1, 422),
        ('{"id":1}', 1, 422),
        ('{"verb":"health"}', None, 422),
        ('{"id":1.5,"verb":"health"}', None, 422),
        ('{"id":9223372036854775808,"verb":"health"}', None, 422),
        ('{"id":1,"verb":"health","x":1}', 1, 422),
        ('{"id":1,"verb":"get_action","episode_id":"a","obs":NaN}', None, 400),
        ('{"id":1,"verb":"get_action","episode_id":"a","obs":' + "[" * 100_000, None, 400),
        ("", None, 400),
        ("[]", None, 422),
        (b"", None, 400),
        (b"\xc1", None, 400),
        (b"\x91" * 100_000, None, 422),
        (b"\x82\xa2id\x01\xa4verb\xc7\x01\x05x", 1, 422),
    ],
)
def test_an_invalid_request_is_refused_and_the_connection_stays_open(server, message, number, status):
    with open_stream(server) as stream:
        stream.send(message)
        found = received(stream)
        assert (found.get("id"), found["status"]) == (number, status)
        assert found["error"]["what"]
        assert answers(stream)


def test_text_that_is_not_utf_8_is_refused_and_the_connection_stays_open(server):
    with bare_stream(server) as stream:
        for sent, says in ((b"\xff", b'"status":400'), (b'{"id":2,"verb":"health"}', b'"id":2')):
            stream.sendall(frame(Opcode.TEXT, sent))
            assert says in stream.recv(65536)


def test_an_error_has_the_time_to_retry():
    error = RequestError("Too many.", status=429, retry_after_s=0.5)
    with serving(FailingService(error)) as server, open_stream(server) as stream:
        stream.send(ACTION_MESSAGE.decode())
        answer = received(stream)
    assert (answer["status"], answer["retry_after"]) == (429, 0.5)


def test_a_message_in_several_frames(server):
    with open_stream(server) as stream:
        stream.send(iter(['{"id":1,"verb":', '"health"', "}"]))
        assert received(stream)["id"] == 1
        stream.ping().wait(PATIENCE_S)


def test_parts_of_a_message_are_not_kept_singly(monkeypatch):
    kept = []
    handle = StreamConnection.handle_cont
    monkeypatch.setattr(
        StreamConnection, "handle_cont", lambda self, part: (handle(self, part), kept.append(len(self.frames)))
    )
    with serving() as server, open_stream(server) as stream:
        stream.send(iter(['{"id":1,', *[""] * 100, *'"verb":"health"}']))
        assert received(stream)["id"] == 1
    assert len(kept) > 100
    assert max(kept) == 1


@pytest.mark.parametrize("sent", [b"\x01\x80" + bytes(4), frame(1, b"x" * 500)[:-1]], ids=["parts", "frame"])
def test_a_slow_message_ends_the_connection(sent):
    with serving(limits=Limits(request_timeout_s=0.05)) as server, bare_stream(server) as connection:
        connection.sendall(frame(Opcode.TEXT, b'{"id":1,"verb":"health"}'))
        assert b'"id":1' in connection.recv(65536)
        connection.sendall(sent)
        assert read_all(connection) == b""
        assert server.metrics.cut_off == 1


def test_a_message_that_is_too_large_ends_the_connection():
    with serving(limits=Limits(max_body_bytes=1000)) as server, open_stream(server) as stream:
        stream.send("x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            stream.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_access():
    with serving(token=TOKEN, allowed_origins=["https://game.example"]) as server:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        encoded = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")

        def refused(status: int, **settings: Any) -> None:
            with pytest.raises(InvalidStatus) as found:
                open_stream(server, **settings).close()
            assert found.value.response.status_code == status
            assert json.loads(found.value.response.body)["error"]["what"]

        refused(401)
        refused(401, additional_headers={"Authorization": "Bearer wrong"})
        refused(401, subprotocols=["rollax", "bearer.d3Jvbmc"])
        refused(403, additional_headers=bearer, origin="https://foreign.example")
        refused(404, additional_headers=bearer, path="/v1/get_action")
        for settings in (
            {"additional_headers": bearer},
            {"additional_headers": bearer, "origin": "https://game.example"},
            {"subprotocols": ["rollax", f"bearer.{encoded}"]},
        ):
            with open_stream(server, **settings) as stream:
                assert stream.subprotocol == ("rollax" if "subprotocols" in settings else None)
                assert answers(stream)


def test_rates_are_limited():
    with serving(limits=Limits(requests_per_s=3)) as server, open_stream(server) as stream:
        statuses = []
        while 429 not in statuses:
            stream.send('{"id":1,"verb":"health"}')
            answer = received(stream)
            statuses.append(answer["status"])
        assert answer["id"] == 1
        assert answer["retry_after"] > 0


def test_lost_connections_are_cleaned_up():
    service = LaterService()
    with serving(service) as server:
        for number in range(10):
            with bare_stream(server) as stream:
                stream.sendall(frame(Opcode.TEXT, ACTION_MESSAGE) + frame(Opcode.TEXT, ACTION_MESSAGE)[:9])
                until(lambda number=number: len(service.waiting) > number, "the request has not arrived")
        until(lambda: server.metrics.streams == 0, "a vanished client is still there")
        for number in range(10):
            service.answer(number, protocol.Action(1, 1))
        with open_stream(server) as stream:
            assert answers(stream)


def test_a_client_that_does_not_read_is_disconnected():
    """It sends until the connection breaks, as the kernel's buffers can be large."""
    message = {"id": 1, "verb": "get_action", "episode_id": "a", "obs": "x" * 100_000}
    data = frame(Opcode.TEXT, json.dumps(message).encode())
    with serving(limits=Limits(max_unsent_bytes=100_000)) as server:
        with bare_stream(server) as stream:
            send_until_it_breaks(stream, data)
        until(lambda: server.metrics.cut_off == 1, "it was not cut off")


def test_silent_clients_are_pinged_and_then_dropped(monkeypatch):
    monkeypatch.setattr(server_module, "_PING_EVERY_S", 0.05)
    monkeypatch.setattr(server_module, "_PONG_WITHIN_S", 0.5)
    with serving() as server, bare_stream(server) as silent, open_stream(server) as answering:
        assert silent.recv(1) == bytes([0x80 | Opcode.PING])
        read_all(silent)
        until(lambda: server.metrics.streams == 1, "the silent client is still connected")
        assert answers(answering)


@pytest.mark.parametrize(
    "handshake",
    [
        HANDSHAKE.replace(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Sec-WebSocket-Key: none"),
        HANDSHAKE.replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 8"),
        HANDSHAKE.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 10_000 + b"\r\n\r\n"),
        HANDSHAKE.replace(b"\r\n\r\n", b"\r\nX: y" * 200 + b"\r\n\r\n"),
        HANDSHAKE.replace(b"GET /v1/stream", b"POST /v1/stream"),
        HANDSHAKE.replace(b"GET /v1/stream", b"GET /v1/%stream\xff"),
    ],
)
def test_a_malformed_handshake_is_refused(server, handshake):
    assert answer_to(server, handshake).startswith(b"HTTP/1.1 4")
    until(lambda: server.metrics.connections == 0, "the connection is still open")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x81\x02{}",  # not masked
        frame(3),  # an unknown opcode
        bytes([0xC1]) + frame(Opcode.TEXT, b"{}")[1:],  # a reserved bit
        frame(Opcode.CONT, b"{}"),  # the continuation of nothing
        frame(Opcode.CLOSE, b"x"),
        frame(Opcode.PING, b"x" * 126),
        b"\x81\xff" + (2**40).to_bytes(8, "big") + bytes(4),  # its declared length is too large
    ],
)
def test_malformed_frames_end_the_connection(server, sent):
    with bare_stream(server) as stream:
        stream.sendall(sent)
        answer = read_all(stream)
        assert answer[:1] == bytes([0x80 | Opcode.CLOSE])
        assert int.from_bytes(answer[2:4], "big") in (1002, 1009)
    until(lambda: server.metrics.streams == 0, "the connection is still open")
