"""Requests that are too large, too slow, too many, or invalid are refused, and no connection is left open."""

import asyncio
import json
import pickle
import time
from contextlib import ExitStack
from types import SimpleNamespace

import msgspec
import pytest
from uvicorn.server import ServerState

from benchmarks.serving.echo import EchoService
from rollax.serving import protocol
from rollax.serving.connections import HttpConnection
from rollax.serving.http import _body, _Request
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer
from tests.serving.wire import (
    ACTION,
    TOKEN,
    LaterService,
    Transport,
    answer_to,
    ask,
    connected,
    head,
    read_all,
    send_until_it_breaks,
    serving,
)
from tests.waiting import until

QUICK = Limits(request_timeout_s=0.05, max_body_bytes=1000, max_header_bytes=2000)


CHUNKED = head().replace(b"Content-Length: %d" % len(ACTION), b"Transfer-Encoding: chunked")


class Bomb:
    """Calls a function when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.fixture(scope="module")
def server():
    with serving(limits=Limits(max_body_bytes=100_000, max_header_bytes=2000)) as found:
        yield found


def test_nothing_is_unpickled(server):
    bomb = pickle.dumps({"episode_id": "a", "obs": Bomb()})
    for content_type in ("application/json", "application/msgpack", "application/octet-stream", "application/x-pickle"):
        answer = ask(server, "/v1/get_action", bomb, content_type=content_type)
        assert answer.status in (400, 415, 422)
        assert answer.json["error"]["id"]
    within = msgspec.msgpack.encode({"episode_id": "a", "obs": msgspec.msgpack.Ext(7, bomb)})
    assert ask(server, "/v1/get_action", within, content_type="application/msgpack").status == 422
    as_bytes = msgspec.msgpack.encode({"episode_id": "a", "obs": bomb})  # plain bytes, which are not executed
    assert ask(server, "/v1/get_action", as_bytes, content_type="application/msgpack").status == 200


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_json_is_refused(server, opening):
    body = b'{"episode_id":"a","obs":' + opening * 15_000
    answer = ask(server, "/v1/get_action", body)
    assert (answer.status, "deeply" in answer.json["error"]["what"]) == (400, True)
    in_an_unknown_field = b'{"episode_id":"a","obs":1,"x":' + opening * 15_000
    assert ask(server, "/v1/get_action", in_an_unknown_field).status in (400, 422)


def test_deep_msgpack_is_refused(server):
    body = b"\x82\xaaepisode_id\xa1a\xa3obs" + b"\x91" * 90_000
    assert ask(server, "/v1/get_action", body, content_type="application/msgpack").status == 400


def test_a_body_with_too_large_a_declared_length_is_not_read(server):
    for length in (100_001, 2**40, 10**30):
        with connected(server) as connection:
            connection.sendall(head(length=length))
            assert connection.recv(65536)[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 400")
    with connected(server) as connection:
        connection.sendall(head(length=100_000) + b" " * (100_000 - len(ACTION)) + ACTION)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_chunked_body_that_is_too_large_is_cut_off(server):
    assert b"chunked" in CHUNKED
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    with connected(server) as connection:
        connection.sendall(CHUNKED)
        send_until_it_breaks(connection, chunk)
    until(lambda: server.metrics.connections == 0, "the connection is still open")


def test_each_part_of_a_body_is_counted_once():
    counted = []

    class Part(bytes):
        def __len__(self) -> int:
            counted.append(1)
            return super().__len__()

    async def receive() -> dict[str, object]:
        received.append(1)
        return {"type": "http.request", "body": Part(b"x"), "more_body": len(received) < 1000}

    received: list[int] = []
    assert asyncio.run(_body(_Request({}, {}, "", receive), 1000)) == b"x" * 1000
    assert len(counted) <= 2 * 1000


def test_a_refused_body_is_read_only_up_to_a_limit():
    with serving(limits=QUICK, token=TOKEN) as server, connected(server) as connection:
        connection.sendall(head(length=10**9))
        send_until_it_breaks(connection, b" " * 1000)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 3000,
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000,
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 600,
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 600 + b"\r\n",
        b"GET /v1/health?" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_head_that_is_too_large_is_refused(server, sent):
    assert answer_to(server, sent).startswith(b"HTTP/1.1 431")


def test_a_large_body_does_not_count_as_the_head_of_the_next_request(server):
    request = head(length=5000 + len(ACTION)) + b" " * 5000 + ACTION
    with connected(server) as connection:
        connection.sendall(request + request[:20])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(request[20:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_refusal_is_not_sent_as_the_response_to_the_request_before_it():
    with serving(LaterService()) as server:
        assert answer_to(server, head() + ACTION + b"HELLO\r\n\r\n") == b""


def test_a_request_after_one_with_another_upgrade_is_answered(server):
    upgrade = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    assert answer_to(server, upgrade * 100 + head(Connection="close") + ACTION).count(b"HTTP/1.1 200") == 101


NO_HTTP = [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"\x00" * 100, b"GET\r\n\r\n"]


@pytest.mark.parametrize("sent", NO_HTTP)
def test_data_that_is_not_http_is_refused(server, sent):
    assert answer_to(server, sent).startswith(b"HTTP/1.1 400")


HANDSHAKE = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
UNFINISHED = [b"", b"G", b"GET /v1/health HTTP/1.1\r\n", head(length=100), head(length=100) + b"{", CHUNKED + b"1\r\n"]


@pytest.mark.parametrize("sent", [*UNFINISHED, HANDSHAKE])
def test_a_slow_request_times_out(sent):
    with serving(limits=QUICK) as server:
        assert answer_to(server, sent).startswith(b"HTTP/1.1 408")
        assert server.service.calls == []


def test_a_request_that_waits_for_its_action_is_not_slow():
    service = LaterService()
    with serving(service) as server, connected(server) as connection:
        connection.sendall(head() + ACTION)
        until(lambda: service.waiting, "no request has arrived")
        for found in list(server._connections):
            found.tick(1e12)  # after a thousand years
        service.answer(0, protocol.Action(1, 1))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_connections_are_bounded_and_freed():
    with serving(limits=Limits(max_connections=5)) as server:
        with ExitStack() as stack:
            kept = [stack.enter_context(connected(server)) for _ in range(5)]
            until(lambda: server.metrics.connections == 5, "a connection is missing")
            for _ in range(3):
                assert read_all(stack.enter_context(connected(server))) == b""
            kept[0].sendall(head() + ACTION)
            assert kept[0].recv(65536).startswith(b"HTTP/1.1 200")
        until(lambda: server.metrics.connections == 0, "a connection is left")
        assert ask(server, "/v1/health").status == 200


def test_connections_of_one_address_are_bounded():
    with serving(limits=Limits(max_connections_per_client=2)) as server, ExitStack() as stack:
        first = [stack.enter_context(connected(server)) for _ in range(2)]
        until(lambda: server.metrics.connections == len(first), "a connection is missing")
        assert read_all(stack.enter_context(connected(server))) == b""


def test_rates_are_bounded():
    with serving(limits=Limits(requests_per_s=2)) as server:
        answers = [ask(server, "/v1/health")]
        while answers[-1].status == 200:
            answers.append(ask(server, "/v1/health"))
        assert (answers[-1].status, int(answers[-1].headers["retry-after"]) >= 1) == (429, True)


def test_lost_connections_are_cleaned_up():
    service = LaterService()
    with serving(service) as server:
        for sent in (b"", head()[:30], head(), head() + ACTION[:9], head() + ACTION, (head() + ACTION) * 30):
            for _ in range(5):
                with connected(server) as connection:
                    connection.sendall(sent)
        until(lambda: server.metrics.connections == 0, "a connection is left")
        for index in range(len(service.waiting)):
            service.answer(index, protocol.Action(1, 1))
        assert ask(server, "/v1/health").status == 200


def test_numbers_out_of_the_range_of_floats(server):
    for number in ("1e999", "-1e999", "1" * 5000, "0." + "0" * 5000 + "1"):
        answer = ask(server, "/v1/get_action", b'{"episode_id":"a","obs":%b}' % number.encode())
        assert answer.status in (200, 400, 422)
        assert b"Infinity" not in answer.body
        json.loads(answer.body)


def test_a_client_that_does_not_read_its_response_is_disconnected():
    server, transport = PolicyServer(EchoService()), Transport()
    connection = HttpConnection(server._config, ServerState(), {}, SimpleNamespace())
    connection.connection_made(transport)
    connection._since = None  # its whole request has arrived
    now = time.monotonic()
    for seconds, unsent, aborted in ((0, 10, False), (29, 10, False), (31, 9, False), (60, 9, False), (62, 9, True)):
        transport.unsent = unsent
        connection.tick(now + seconds)
        assert (transport.aborted, server.metrics.cut_off) == (aborted, aborted)
    connection.connection_lost(ConnectionError())
    server.stop()
