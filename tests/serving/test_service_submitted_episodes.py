"""Whole episodes that a client submits: their columns, errors, and the limit of pending ones."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from rollax.errors import RequestError
from rollax.serving.protocol import Episode, SubmitEpisodes, Trajectory
from tests.serving.service_session import X, refused
from tests.serving.stand_in_backend import StandIn


def test_pending_submissions_are_limited(serve):
    runs = threading.Event()

    class Slow(StandIn):
        def submit(self, episodes: Any) -> Any:
            runs.wait()
            return super().submit(episodes)

    async def play(session):
        try:
            waiting = [session("submit_episodes", SubmitEpisodes(episodes=[], request_id=str(n))) for n in range(2)]
            again = session("submit_episodes", SubmitEpisodes(episodes=[], request_id="0"))
            error = refused(429, session, "submit_episodes", SubmitEpisodes(episodes=[]))
            assert (error.parts["where"], error.retry_after_s) == ("max_submissions", 1.0)
        finally:
            runs.set()
        await asyncio.gather(*waiting, again)
        assert (await session("submit_episodes", SubmitEpisodes(episodes=[]))).accepted == 0

    serve(play, Slow(), max_submissions=2)


def test_a_refused_submission_is_not_kept(serve):
    """The error's traceback would keep its episodes alive."""

    async def play(session):
        request = SubmitEpisodes(episodes=[], request_id="1")
        session.backend.refuses = True
        with pytest.raises(RequestError, match="The backend refuses"):
            await session("submit_episodes", request)
        session.backend.refuses = False
        assert (await session("submit_episodes", request)).accepted == 0

    serve(play, StandIn())


def test_submissions_are_identified_by_id_and_content(serve):
    submitted = []

    class Collects(StandIn):
        def submit(self, episodes: Any) -> Any:
            submitted.append(len(episodes))
            return super().submit(episodes)

    async def play(session):
        def episodes(action):
            played = Trajectory(obs=[X, X], actions=[action], rewards=[1.0], terminated=True)
            return SubmitEpisodes(episodes=[Episode(agents={"agent0": played})], request_id="1")

        for action in (0, 1, 0):  # from two clients that count their requests, and again from the first one
            await session("submit_episodes", episodes(action))
        assert submitted == [1, 1]

    serve(play, Collects())


def trajectory(**changes: Any) -> Trajectory:
    fields = {"obs": [X, X, X], "actions": [0, 1], "rewards": [1, 2.0], "terminated": True}
    return Trajectory(**{**fields, **changes})


def test_submitted_episodes_become_columns(serve):
    async def play(session):
        def episode():
            return Episode(agents={"agent0": trajectory(action_logp=[-0.5, -0.25], t=[0, 2], infos=[{}, {}])})

        answers = [session("submit_episodes", SubmitEpisodes(episodes=[episode()], request_id="r")) for _ in range(2)]
        assert [(await answer).accepted for answer in answers] == [1, 1]

    backend = StandIn(learns=True)
    serve(play, backend)
    ((_, (episode,)),) = backend.calls
    columns = episode.agents["agent0"]
    assert columns.obs.shape == (3, 2)
    assert columns.obs.dtype == np.float32
    np.testing.assert_array_equal(columns.actions, [0, 1])
    np.testing.assert_array_equal(columns.rewards, [1.0, 2.0])
    np.testing.assert_array_equal(columns.action_logp, np.array([-0.5, -0.25], np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": [], "rewards": [], "obs": [X]},
        {"obs": [X, X]},
        {"rewards": [1.0]},
        {"rewards": [1.0, float("nan")]},
        {"rewards": [1.0, 1e10]},
        {"actions": [0, 3]},
        {"obs": [X, X, [0.0]]},
        {"truncated": True},
        {"action_logp": [-0.5]},
        {"action_logp": [-0.5, float("-inf")]},
        {"action_logp": [-0.5, 0.5]},
        {"t": [1, 1]},
        {"t": [-1, 1]},
        {"infos": [{}, {"a": float("inf")}]},
    ],
)
def test_submitted_episodes_are_checked(serve, changes):
    async def play(session):
        episode = Episode(agents={"agent0": trajectory(**changes)})
        with pytest.raises(RequestError) as caught:
            await session("submit_episodes", SubmitEpisodes(episodes=[episode]))
        assert caught.value.status == 422

    backend = StandIn(learns=True)
    serve(play, backend)
    assert backend.calls == []


def test_submitted_episodes_of_other_agents(serve):
    async def play(session):
        for agents in ({}, {"a": trajectory()}):
            with pytest.raises(RequestError, match="does not have the expected agents"):
                await session("submit_episodes", SubmitEpisodes(episodes=[Episode(agents=agents)]))

    serve(play)
