"""Whole episodes that a client submits: their columns, errors, and the limit of pending ones."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from rollax.errors import RequestError
from rollax.serving.codec import VERBS
from rollax.serving.protocol import Episode, Trajectory
from tests.serving.service_session import X, refused, with_service
from tests.serving.stand_in_backend import StandIn


class Slow(StandIn):
    """Accepts submissions after an event."""

    def __init__(self, *spaces: Any, **settings: Any) -> None:
        super().__init__(*spaces, **settings)
        self.runs = threading.Event()

    def submit(self, episodes: Any) -> Any:
        self.runs.wait()
        return super().submit(episodes)


@with_service(backend=Slow, max_submissions=2)
async def test_pending_submissions_are_limited(session):
    try:
        waiting = [session("submit_episodes", episodes=[], request_id=str(n)) for n in range(2)]
        again = session("submit_episodes", episodes=[], request_id="0")
        error = refused(429, session, "submit_episodes", episodes=[])
        assert (error.parts["where"], error.retry_after_s) == ("max_submissions", 1.0)
    finally:
        session.backend.runs.set()
    await asyncio.gather(*waiting, again)
    assert (await session("submit_episodes", episodes=[])).accepted == 0


@with_service()
async def test_a_refused_submission_is_not_kept(session):
    """The error's traceback would keep its episodes alive."""
    request = {"episodes": [], "request_id": "1"}
    session.backend.refuses = True
    with pytest.raises(RequestError, match="The backend refuses"):
        await session("submit_episodes", **request)
    session.backend.refuses = False
    assert (await session("submit_episodes", **request)).accepted == 0


@with_service()
async def test_submissions_are_identified_by_id_and_content(session):
    for action in (0, 1, 0):  # from two clients that count their requests, and again from the first one
        played = Trajectory(obs=[X, X], actions=[action], rewards=[1.0], terminated=True)
        await session("submit_episodes", episodes=[Episode(agents={"agent0": played})], request_id="1")
    assert [len(episodes) for _, episodes in session.backend.calls] == [1, 1]


@with_service()
async def test_a_submission_repeated_on_the_stream_has_another_message_id(session):
    message = next(kind for kind, verb in VERBS.items() if verb == "submit_episodes")
    for number in (1, 2):
        played = Trajectory(obs=[X, X], actions=[0], rewards=[1.0], terminated=True)
        request = message(id=number, request_id="r", episodes=[Episode(agents={"agent0": played})])
        await session.service.call("submit_episodes", request, "me")
    assert session.backend.verbs == ["submit"]


def trajectory(**changes: Any) -> Trajectory:
    fields = {"obs": [X, X, X], "actions": [0, 1], "rewards": [1, 2.0], "terminated": True}
    return Trajectory(**{**fields, **changes})


@with_service(learns=True)
async def test_submitted_episodes_become_columns(session):
    def episode():
        return Episode(agents={"agent0": trajectory(action_logp=[-1e6, -0.25], t=[0, 2], infos=[{}, {}])})

    answers = [session("submit_episodes", episodes=[episode()], request_id="r") for _ in range(2)]
    assert [(await answer).accepted for answer in answers] == [1, 1]
    ((_, (episode,)),) = session.backend.calls
    columns = episode.agents["agent0"]
    assert columns.obs.shape == (3, 2)
    assert columns.obs.dtype == np.float32
    np.testing.assert_array_equal(columns.actions, [0, 1])
    np.testing.assert_array_equal(columns.rewards, [1.0, 2.0])
    np.testing.assert_array_equal(columns.action_logp, np.array([-1e6, -0.25], np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        *({"actions": [], "rewards": [], "obs": [X]}, {"obs": [X, X]}, {"rewards": [1.0]}),
        *({"rewards": [1.0, float("nan")]}, {"rewards": [1.0, 1e10]}, {"actions": [0, 3]}, {"obs": [X, X, [0.0]]}),
        *({"truncated": True}, {"action_logp": [-0.5]}, {"action_logp": [-0.5, float("-inf")]}),
        *({"action_logp": [-0.5, 0.5]}, {"t": [1, 1]}, {"t": [-1, 1]}, {"infos": [{}, {"a": float("inf")}]}),
    ],
)
@with_service(learns=True)
async def test_submitted_episodes_are_checked(session, changes):
    episode = Episode(agents={"agent0": trajectory(**changes)})
    with pytest.raises(RequestError) as caught:
        await session("submit_episodes", episodes=[episode])
    assert caught.value.status == 422
    assert session.backend.calls == []


@with_service()
async def test_submitted_episodes_of_other_agents(session):
    for agents in ({}, {"a": trajectory()}):
        with pytest.raises(RequestError, match="does not have the expected agents"):
            await session("submit_episodes", episodes=[Episode(agents=agents)])
