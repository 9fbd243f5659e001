"""Running episodes are counted, found and dropped, and the ids of ended ones are kept up to a limit."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rollax.errors import ConfigError, RequestError
from rollax.serving import sessions as module
from rollax.serving.limits import Limits
from rollax.serving.protocol import EndEpisode
from rollax.serving.sessions import EXPIRED, Sessions
from tests.env.refused import raised


def make(**limits: float) -> Sessions:
    return Sessions(Limits(**limits), lambda: 0.0)


def test_the_number_of_kept_ended_episodes_is_limited(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED_ENDS", 10)
    sessions = make()
    for number in range(100):
        session = sessions.start(str(number), "client")
        sessions.remember_start(f"r{number}", session.id)
        sessions.end(session, key=(EndEpisode, f"e{number}"), response="done")
    assert len(sessions._ended) == len(sessions._started) == 10
    assert sessions.response_to("99", (EndEpisode, "e99")) == "done"
    assert sessions.response_to("99", (EndEpisode, "another")) is None
    assert sessions.response_to("0", (EndEpisode, "e0")) is None
    assert list(sessions._started)[-1] == "r99"
    assert sessions.started_by("r99") is None
    assert sessions.clients == 0


CLIENTS, STEPS = st.sampled_from(["one", "two"]), st.sampled_from(["start", "end", "expire"])


@given(st.lists(st.tuples(st.sampled_from("abcd"), CLIENTS, STEPS)))
def test_counts_agree_with_running_episodes(steps):
    sessions = make(max_episodes=3, max_episodes_per_client=2)
    running: dict[str, str] = {}
    for episode_id, client, step in steps:
        if step == "start":
            refused = episode_id in running or len(running) >= 3 or list(running.values()).count(client) >= 2
            if refused:
                raised(RequestError, sessions.start, episode_id, client)
            else:
                sessions.start(episode_id, client)
                running[episode_id] = client
        elif episode_id in running:
            sessions.end(sessions.running(episode_id), EXPIRED if step == "expire" else "ended")
            del running[episode_id]
    assert {session.id: session.client for session in sessions} == running
    assert len(sessions) == len(running)
    assert sessions.clients == len(set(running.values()))
    assert sessions.started == len(running) + sessions.ended + sessions.expired


@pytest.mark.parametrize("name", list(Limits().as_numbers()))
def test_limits_are_positive(name):
    for value in (0, -1, float("nan")):
        raised(ConfigError, Limits, says="not a positive number", **{name: value})


def test_limits_are_integers():
    assert repr(Limits(max_body_bytes=1e6).max_body_bytes) == "1000000"  # type: ignore[arg-type]
    for value in (1.5, float("inf")):
        raised(ConfigError, Limits, says="max_episodes...whole", max_episodes=value)
