"""Every route of a policy server, and its responses."""

import json
import logging
import os
import re
import signal
import threading

import msgspec
import pytest
from starlette.responses import HTMLResponse

from benchmarks.serving.echo import EchoService
from rollax.errors import ConfigError, RequestError, SpaceError
from rollax.serving import protocol
from rollax.serving.metrics import Metrics
from rollax.serving.openapi import RESPONSES, description
from rollax.serving.server import PolicyServer
from tests.serving.wire import (
    ACTION,
    TOKEN,
    FailingService,
    LaterService,
    answer_to,
    ask,
    connected,
    head,
    place,
    read_all,
    serving,
)
from tests.waiting import until

BODIES = {
    "start_episode": ({"episode_id": "a", "training_enabled": False}, {"episode_id": "a"}),
    "get_action": ({"episode_id": "a", "obs": [1.5, 2]}, {"action": [1.5, 2], "version": 0}),
    "get_actions": ({"observations": {"a": [1], "b": [2]}}, {"actions": {"a": [1], "b": [2]}, "version": 0}),
    "log_action": ({"episode_id": "a", "obs": 1, "action": 2}, {}),
    "log_returns": ({"episode_id": "a", "reward": 1.0, "info": {"k": 1}}, {}),
    "end_agents": ({"episode_id": "a", "observations": {"x": None}, "truncated": True}, {}),
    "end_episode": ({"episode_id": "a", "obs": 1, "truncated": True}, {}),
    "submit_episodes": (
        {"episodes": [{"agents": {"agent0": {"obs": [1, 2], "actions": [0], "rewards": [1.0]}}}]},
        {"accepted": 1, "too_old": 0, "version": 0},
    ),
}


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.mark.parametrize("verb", protocol.REQUESTS)
def test_a_verb_is_executed_with_its_body_and_client(server, verb):
    sent, expected = BODIES[verb]
    server.service.calls.clear()
    answer = ask(server, f"/v1/{verb}", json.dumps(sent).encode(), content_type="application/json; charset=utf-8")
    assert (answer.status, answer.headers["content-type"], answer.json) == (200, "application/json", expected)
    as_msgpack = ask(server, f"/v1/{verb}", msgspec.msgpack.encode(sent), content_type="application/msgpack")
    assert (as_msgpack.status, as_msgpack.headers["content-type"]) == (200, "application/msgpack")
    assert msgspec.msgpack.decode(as_msgpack.body) == expected
    if not verb.startswith("get_"):
        request = msgspec.convert(sent, protocol.REQUESTS[verb])
        assert server.service.calls == [(verb, request, "127.0.0.1")] * 2


def test_queries(server):
    hello = ask(server, "/v1").json
    assert (hello["protocol"], hello["addresses"]) == (protocol.PROTOCOL_VERSION, [server.address])
    assert hello["limits"]["max_body_bytes"] == server.service.limits.max_body_bytes
    assert ask(server, "/v1/health").json["status"] == "ok"
    statistics = ask(server, "/v1/statistics").json
    assert statistics["episodes_running"] == 0
    assert statistics["server"]["requests"] >= 2
    assert 0 < statistics["server"]["latency_p50_s"] <= statistics["server"]["latency_p99_s"]
    without_body = ask(server, "/v1/health", method="HEAD")
    assert (without_body.status, without_body.body) == (200, b"")


def test_metrics_count_requests_by_verb_and_status():
    with serving() as server:
        for _ in range(3):
            ask(server, "/v1/get_action", ACTION)
        ask(server, "/v1/get_action", b"{}")
        ask(server, "/v1/no_such_verb", b"{}")
        answer = ask(server, "/v1/metrics")
    lines = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#"))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert lines['rollax_requests_total{verb="get_action",status="200"}'] == "3"
    assert lines['rollax_requests_total{verb="get_action",status="422"}'] == "1"
    assert lines['rollax_requests_total{verb="other",status="404"}'] == "1"
    bucket = 'rollax_request_seconds_bucket{verb="get'
    buckets = [int(count) for name, count in lines.items() if name.startswith(bucket)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == int(lines['rollax_request_seconds_count{verb="get_action"}']) == 4
    assert lines["rollax_connections"] == "1"
    assert lines["rollax_episodes_running"] == "0"


def test_metrics_of_long_runs_are_exact():
    assert "\nrollax_steps_total 123456789\n" in Metrics().text({"steps_total": 123456789.0})


def test_files_have_an_etag_and_are_made_once_per_version():
    service = EchoService()
    made = []
    service.weights = lambda policy_id: made.append(policy_id) or EchoService.weights(service, policy_id)
    service.onnx = lambda policy_id: made.append("onnx") or EchoService.onnx(service, policy_id)
    with serving(service) as server:
        first = ask(server, "/v1/weights?policy_id=default_policy")
        assert first.body == b"weights of default_policy, version 0"
        assert ask(server, "/v1/weights").body == first.body
        unchanged = ask(server, "/v1/weights", if_none_match=f'"other", {first.headers["etag"]}')
        assert (unchanged.status, unchanged.body, made) == (304, b"", ["default_policy"])
        service.version = 1
        second = ask(server, "/v1/weights", if_none_match=first.headers["etag"])
        assert (second.status, second.body) == (200, b"weights of default_policy, version 1")
        for _ in range(2):
            assert ask(server, "/v1/policy").body == b"ONNX of default_policy, version 1"
        assert made == ["default_policy", "default_policy", "onnx"]
        for query in ("policy=x", "policy_id=a&policy_id=b", "policy_id", "%ff=1"):
            assert ask(server, f"/v1/weights?{query}").status in (400, 422)
    with serving() as other:  # a restarted server may count its versions from 0 again
        assert ask(other, "/v1/weights").headers["etag"] != first.headers["etag"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "says"),
    [
        ("/v1/none", None, {}, 404, "no such path"),
        ("/v1/get_action/", b"{}", {}, 404, "no such path"),
        ("/v1/get_action", None, {}, 405, "does not support this method"),
        ("/v1", b"{}", {}, 405, "does not support this method"),
        ("/v1/get_action", ACTION, {"content_type": "application/octet-stream"}, 415, "unknown type"),
        ("/v1/get_action", b"{", {}, 400, "malformed"),
        ("/v1/get_action", b"", {}, 400, "malformed"),
        ("/v1/get_action", b'{"episode_id":"a","obs":NaN}', {}, 400, "malformed"),
        ("/v1/get_action", b'{"episode_id":"a","obs":Infinity}', {}, 400, "malformed"),
        ("/v1/get_action", b'{"episode_id":"a"}', {}, 422, "fields"),
        ("/v1/get_action", b'{"episode_id":1,"obs":1}', {}, 422, "fields"),
        ("/v1/get_action", b'{"episode_id":"a","obs":1,"no":1}', {}, 422, "fields"),
        ("/v1/get_action", b"\xff\xfe", {}, 400, "malformed"),
    ],
)
def test_refusals(server, path, body, headers, status, says):
    answer = ask(server, path, body, **headers)
    assert (answer.status, says in answer.json["error"]["what"]) == (status, True)
    assert re.fullmatch("[0-9a-f]{16}", answer.json["error"]["id"])
    assert ("allow" in answer.headers) == (status == 405)


def test_a_request_error_keeps_its_status_and_parts(caplog):
    error = RequestError("Too many.", status=429, retry_after_s=1.2, where="here", got=3, expected="2", fix="wait")
    caplog.set_level(logging.INFO, "rollax.serving")
    with serving(FailingService(error)) as server:
        answer = ask(server, "/v1/get_action", ACTION)
    found = answer.json["error"]
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert found.pop("id") in caplog.text
    assert found == {"what": "Too many.", "where": "here", "got": "3", "expected": "2", "fix": "wait"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestError("An infinite pause.", status=429, retry_after_s=float("inf")), 429),
        (SpaceError("Not in the space.", got=[1]), 422),
    ],
    ids=["infinite pause", "another error of rollax"],
)
def test_an_error_without_a_time_to_retry(error, status):
    with serving(FailingService(error)) as server:
        answer = ask(server, "/v1/get_action", ACTION)
    assert (answer.status, answer.json["error"]["what"]) == (status, error.parts["what"])
    assert "retry-after" not in answer.headers


def test_the_response_to_an_unexpected_error_has_only_its_id(caplog):
    with serving(FailingService(ZeroDivisionError("a secret"))) as server:
        answer = ask(server, "/v1/get_action", ACTION)
        assert ask(server, "/v1/health").status == 200
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert answer.json["error"]["id"] in caplog.text
    assert "a secret" in caplog.text


def test_actions_can_be_ready_later():
    service = LaterService()
    with serving(service) as server, connected(server) as connection:
        connection.sendall(head() + ACTION)
        until(lambda: service.waiting, "no request has arrived")
        service.answer(0, protocol.Action(7, 3))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(head(Connection="close") + ACTION)
        until(lambda: len(service.waiting) == 2, "no second request has arrived")
        service.answer(1, RequestError("Lost.", status=410))
        assert read_all(connection).startswith(b"HTTP/1.1 410")


def test_one_connection_carries_many_requests_at_once(server):
    answers = answer_to(server, (head() + ACTION) * 20 + head(Connection="close") + ACTION)
    assert answers.count(b'{"action":[1,2],"version":0}') == 21


def test_a_server_on_all_addresses_returns_the_address_of_the_request():
    with serving(host="0.0.0.0", token=TOKEN) as server:
        _, port = place(server)
        own, other = f"http://127.0.0.1:{port}", "http://127.0.0.1:9902"
        for given, returned in (([], [own]), ([server.address, "http://0.0.0.0:9902"], [own, other])):
            server.service.addresses = given  # those of a run
            assert ask(server, "/v1", authorization=f"Bearer {TOKEN}").json["addresses"] == returned


def test_pages_need_no_token():
    page = HTMLResponse("<!doctype html><title>game</title>")
    with serving(token=TOKEN, pages={"/game": page}) as server:
        answer = ask(server, "/game")
        assert (answer.status, answer.body) == (200, page.body)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert ask(server, "/v1/health").status == 401


def test_the_description_has_every_route(server):
    found = ask(server, "/openapi.json").json
    assert found == msgspec.json.decode(msgspec.json.encode(description()))
    routes = {(path, method) for path, methods in found["paths"].items() for method in methods}
    queries = ("/v1", "/v1/health", "/v1/statistics", "/v1/metrics", "/v1/weights", "/v1/policy")
    assert routes == {(f"/v1/{verb}", "post") for verb in protocol.REQUESTS} | {(path, "get") for path in queries}
    assert set(RESPONSES) == set(protocol.REQUESTS)
    for reference in re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', json.dumps(found)):
        assert reference in found["components"]["schemas"]
    page = ask(server, "/docs").body.decode()
    assert all(f"/v1/{verb}" in page for verb in protocol.REQUESTS)
    assert "src=" not in page
    assert "http:" not in page


def test_start_and_stop():
    server = PolicyServer(EchoService())
    server.stop()
    server.stop()
    with serving() as running, connected(running) as idle, connected(running) as busy:
        idle.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(65536)
        busy.sendall(head()[:-4])
        with pytest.raises(ConfigError, match="cannot listen"):
            PolicyServer(EchoService(), port=place(running)[1])
        running.stop()
        assert read_all(idle) == b""
        with pytest.raises(ConnectionError), connected(running):
            pass


def test_a_server_stops_while_it_starts(monkeypatch):
    service, begun, go_on = EchoService(), threading.Event(), threading.Event()
    monkeypatch.setattr(service, "start", lambda: begun.set() or go_on.wait(60.0))
    server = PolicyServer(service)
    starting = threading.Thread(target=server.start)
    stopping = threading.Thread(target=server.stop, daemon=True)
    starting.start()
    begun.wait(60.0)
    stopping.start()  # as after an interrupt of `start`
    stopping.join(0.05)
    go_on.set()
    starting.join(60.0)
    stopping.join(5.0)
    assert not stopping.is_alive()


def test_pending_requests_are_answered_when_the_server_stops():
    service = LaterService()
    with serving(service) as server, connected(server) as connection:
        connection.sendall(head() + ACTION)
        until(lambda: service.waiting, "no request has arrived")
        server.stop()
        assert read_all(connection)[:12] in (b"HTTP/1.1 500", b"")


def test_a_server_stops_after_a_signal_has_interrupted_its_wait():
    with serving() as server:

        def wait() -> None:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            server.wait(60.0)

        with pytest.raises(KeyboardInterrupt):
            wait()
        assert ask(server, "/v1/health").status == 200


def test_a_server_that_was_not_started_has_ended():
    server = PolicyServer(EchoService())
    server.wait()
    server.stop()
