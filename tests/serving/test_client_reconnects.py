"""The Python client against a server that loses connections, refuses requests, and restarts."""

import socket
import threading
from contextlib import contextmanager

import pytest

from rollax import EpisodeLostError, PolicyClient, RequestError
from tests.env.refused import raised, refused
from tests.serving.fake_server import DROP_AFTER, DROP_BEFORE, FakeServer, error, over_http, over_websocket
from tests.waiting import in_threads

OBS = [0.5, -0.5]
BUSY = (429, error("Too many requests."), {"Retry-After": "0.01"})
STARTING = (503, error("The server is starting."), {})


def play(client, steps=3):
    """One episode; returns its actions."""
    episode, actions = client.start_episode(), []
    for _ in range(steps):
        actions.append(client.get_action(episode, OBS))
        client.log_returns(episode, 1.0)
    client.end_episode(episode, OBS)
    return actions


@contextmanager
def closed_port():
    """A port that refuses connections and stays reserved."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("fault", [DROP_BEFORE, DROP_AFTER, BUSY, STARTING], ids=["before", "after", "429", "503"])
def test_an_episode_survives_any_fault_at_any_request(over, fault):
    """Each request of an episode fails once; the server executes it once."""
    verbs = ["start_episode", *["get_action", "log_returns"] * 3, "end_episode"]
    for failing in range(len(verbs)):
        fake = FakeServer()
        with over(fake) as address, PolicyClient(address) as client:
            fake.faults.extend([*[None] * failing, fault])
            assert play(client) == [0, 1, 2]
        assert [verb for verb, _ in fake.executed] == verbs
        assert len(fake.requests) == len(verbs) + 2  # hello, and the repeated request


def test_many_faults_in_a_row(fake, client):
    fake.faults.extend([DROP_AFTER, DROP_BEFORE, BUSY, DROP_AFTER])
    assert play(client) == [0, 1, 2]
    assert len(fake.executed) == 8


def test_a_restarted_server_has_lost_the_episodes_and_the_client_continues(fake, client):
    episode = client.start_episode()
    client.get_action(episode, OBS)
    fake.forget()
    with pytest.raises(EpisodeLostError, match="not known") as raised:
        client.get_action(episode, OBS)
    assert (raised.value.status, raised.value.error_id) == (404, "e1")
    assert play(client) == [0, 1, 2]


def test_one_connection_is_kept(fake, client):
    play(client)
    play(client)
    assert fake.opened == 1


def test_each_thread_has_its_own_connection(fake, client):
    fake.faults.extend([None, DROP_AFTER] * 20)
    results = {}
    in_threads(8, lambda number: results.update({number: play(client, 5)}))
    assert results == {number: [0, 1, 2, 3, 4] for number in range(8)}


def test_a_server_that_is_always_busy_is_an_error_with_its_text(fake, client):
    fake.faults.extend([(429, error("Too many episodes.", fix="end some"), {"Retry-After": "1000"})])
    with pytest.raises(RequestError, match=r"Too many episodes\.(.|\n)*end some") as raised:
        client.start_episode()
    assert (raised.value.status, raised.value.retry_after_s) == (429, 1000.0)


def test_a_refusal_is_not_repeated(fake, client):
    episode = client.start_episode()
    fake.faults.append((422, error("A NaN.", where="obs"), {}))
    raised(RequestError, client.get_action, episode, OBS, says="A NaN")
    assert fake.requests == ["hello", "start_episode", "get_action"]


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_without_a_server_the_error_names_the_address(scheme):
    with closed_port() as port, PolicyClient(f"{scheme}://127.0.0.1:{port}", timeout=0.3) as client:
        refused(RequestError, client.start_episode, says=f"could not be reached...{scheme}://127.0.0.1:{port}")


@pytest.mark.parametrize("over", [over_http], indirect=True)
def test_a_page_of_a_proxy_is_an_error(fake, client):
    fake.faults.append((500, {"nothing": "here"}, {}))
    raised(RequestError, client.start_episode, says="answered start_episode with status 500")
    assert play(client) == [0, 1, 2]


def test_a_closed_client_ends_its_waiting_threads():
    raised = []

    def start():
        try:
            client.start_episode()
        except RequestError as caught:
            raised.append(caught)

    with closed_port() as port:
        client = PolicyClient(f"http://127.0.0.1:{port}", timeout=1000.0)
        thread = threading.Thread(target=start)
        thread.start()
        client.close()
        thread.join(60)
    assert "closed" in str(raised[0])


def test_a_refused_websocket_is_opened_again_if_the_server_is_busy_or_unavailable():
    fake = FakeServer()
    with over_websocket(fake) as address, PolicyClient(address) as client:
        fake.refusals = [502, 503, 504, 429]
        assert client.hello()["server"] == "fake"
    with over_websocket(fake) as address, PolicyClient(address, timeout=0.3) as client:
        fake.refusals = [503] * 100
        with pytest.raises(RequestError) as caught:
            client.hello()
        assert caught.value.status == 503
        assert len(fake.refusals) < 99
    fake = FakeServer()  # a handshake that the timeout has cut off may still take one of the last server's refusals
    with over_websocket(fake) as address, PolicyClient(address) as client:
        fake.refusals = [403, 403]
        raised(RequestError, client.hello)
        assert fake.refusals == [403]
