"""Requests in all orders: what is executed, what is refused, and what is executed once although it arrives twice."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from rollax.errors import EnvError, NonFiniteError, RequestError
from rollax.serving.limits import Limits
from rollax.serving.protocol import (
    Action,
    Actions,
    Done,
    EndAgents,
    EndEpisode,
    Episode,
    GetAction,
    GetActions,
    LogAction,
    LogReturns,
    StartEpisode,
    SubmitEpisodes,
    Trajectory,
)
from rollax.serving.service import Service
from tests.serving.stand_in_backend import MASKED, StandIn

X = [0.5, -0.5]


class Session:
    """Requests to a service as one client, with a clock that the test sets."""

    def __init__(self, backend: StandIn, **limits: Any) -> None:
        self.now = 0.0
        self.backend = backend
        self.service = Service(backend, Limits(**limits), clock=lambda: self.now)
        self.service.start()
        self.client = "me"

    def __call__(self, verb: str, request: Any = None) -> Any:
        return self.service.call(verb, request, self.client)

    def start(self, episode_id: str = "e", **fields: Any) -> str:
        return self("start_episode", StartEpisode(episode_id=episode_id, **fields)).episode_id

    def act(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("get_action", GetAction(episode_id=episode_id, obs=obs, **fields))

    def reward(self, reward: Any = 1.0, episode_id: str = "e", **fields: Any) -> Any:
        return self("log_returns", LogReturns(episode_id=episode_id, reward=reward, **fields))

    def end(self, episode_id: str = "e", obs: Any = X, **fields: Any) -> Any:
        return self("end_episode", EndEpisode(episode_id=episode_id, obs=obs, **fields))


@pytest.fixture
def serve():
    """Runs a test's coroutine with a service; whatever it does, the service is closed."""

    def run(play: Any, backend: StandIn | None = None, **limits: Any) -> Session:
        async def main() -> Session:
            session = Session(backend or StandIn(), **limits)
            try:
                await play(session)
            finally:
                session.service.close()
            return session

        return asyncio.run(main())

    return run


def refused(status: int, call: Any, *arguments: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(*arguments, **fields)
    assert caught.value.status == status, str(caught.value)
    return caught.value


def test_an_episode_reaches_the_backend_in_the_types_of_its_spaces(serve):
    async def play(session):
        assert session.start(training_enabled=False) == "e"
        assert session.act() == Action(2, 7)
        assert session.reward(2, info={"a": [1, "x", None]}) == Done()
        assert session("log_action", LogAction(episode_id="e", obs=X, action=1)) == Done()
        assert session.end(truncated=True) == Done()
        assert len(session.service.sessions) == 0

    backend = StandIn()
    serve(play, backend)
    names = [call[0] for call in backend.calls]
    assert names == ["start", "log_returns", "log_action", "end"]
    assert backend.calls[0] == ("start", "e", False)
    assert backend.calls[1] == ("log_returns", "e", 2.0, {"a": [1, "x", None]})
    _, _, obs, action = backend.calls[2]
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs, X)
    assert action == 1
    assert backend.calls[3][3] is True
    assert backend.closed == 1


def test_ids_are_made_by_the_server_where_none_is_given(serve):
    async def play(session):
        ids = {session("start_episode", StartEpisode()).episode_id for _ in range(10)}
        assert len(ids) == 10
        assert len(session.service.sessions) == 10

    serve(play)


def test_many_episodes_in_one_request(serve):
    async def play(session):
        for name in "abc":
            session.start(name)
        got = session("get_actions", GetActions(observations=dict.fromkeys("abc", X)))
        assert got == Actions({"a": 2, "b": 2, "c": 2}, 7)
        assert session("get_actions", GetActions(observations={})) == Actions({}, 7)
        error = refused(404, session, "get_actions", GetActions(observations={"a": X, "z": X}))
        assert error.parts["got"] == "z"
        assert session.service.call("health", None, "me").pending == 0

    serve(play)


def test_unknown_ended_and_duplicate_episodes(serve):
    async def play(session):
        for verb in (session.act, session.reward, session.end):
            assert refused(404, verb, episode_id="nobody").parts["fix"].startswith("call start_episode")
        session.start()
        assert "end it first" in refused(409, session.start).parts["fix"]
        session.act()
        session.end()
        for verb in (session.act, session.reward, session.end):
            assert refused(410, verb).parts["what"] == "An episode that has ended."
        assert session.start() == "e"  # the id may be used again
        session.act()

    serve(play)


def test_an_episode_without_an_action_is_dropped(serve):
    async def play(session):
        session.start()
        assert "dropped" in str(refused(409, session.end))
        refused(410, session.end)
        session.start()
        refused(409, session.reward)

    backend = StandIn()
    serve(play, backend)
    assert [call[0] for call in backend.calls] == ["start", "drop", "start", "drop"]  # the last one at the close


def test_a_busy_episode_takes_no_second_request(serve):
    async def play(session):
        session.start()
        session.start("other")
        future = session.act()
        assert isinstance(future, asyncio.Future)
        refused(409, session.act)
        refused(409, session.end)
        refused(409, session, "log_action", LogAction(episode_id="e", obs=X, action=1))
        refused(409, session, "get_actions", GetActions(observations={"other": X, "e": X}))
        assert session.service.call("health", None, "me").pending == 1
        session.backend.answer()
        assert await future == Action(2, 7)
        other = session.act("other")
        session.backend.answer()
        assert (await other).action == 2
        session.end()

    serve(play, StandIn(answers=False))


def test_answers_from_another_thread_arrive_in_the_loop(serve):
    async def play(session):
        for name in "abcd":
            session.start(name)
        futures = [session.act(name) for name in "abcd"]
        answers = list(session.backend.asked)

        def answer_all() -> None:
            for observations, on_done in answers:
                on_done(Actions(dict.fromkeys(observations, 1), 9))

        thread = threading.Thread(target=answer_all)
        thread.start()
        got = await asyncio.wait_for(asyncio.gather(*futures), 60)
        thread.join()
        assert got == [Action(1, 9)] * 4

    serve(play, StandIn(answers=False))


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (NonFiniteError("NaN weights."), RequestError, 500),
        (RequestError("Stopping.", status=503, retry_after_s=2.0), RequestError, 503),
        (ZeroDivisionError("a bug"), ZeroDivisionError, None),
    ],
)
def test_an_error_of_the_backend_frees_the_episode(serve, error, kind, status):
    async def play(session):
        session.start()
        future = session.act(request_id="r")
        session.backend.answer(error)
        with pytest.raises(kind) as caught:
            await future
        assert getattr(caught.value, "status", None) == status
        again = session.act(request_id="r")  # it was not executed, so it may be repeated
        session.backend.answer()
        assert (await again).action == 2

    serve(play, StandIn(answers=False))


def test_a_refusal_of_the_backend_changes_nothing(serve):
    async def play(session):
        session.backend.refuses = True
        refused(418, session.start)
        session.backend.refuses = False
        session.start()
        session.backend.refuses = True
        refused(418, session.act)
        session.backend.refuses = False
        assert session.service.call("health", None, "me").pending == 0
        session.act()
        session.backend.refuses = True
        refused(418, session.end)
        session.backend.refuses = False
        session.end()

    serve(play)


def test_other_errors_of_the_backend_become_errors_of_the_request():
    class Strict(StandIn):
        def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
            raise EnvError("Off-policy actions.", where="here", got=3, expected="none", fix="log none")

    async def main() -> None:
        session = Session(Strict())
        session.start()
        error = refused(422, session, "log_action", LogAction(episode_id="e", obs=X, action=1))
        assert error.parts == {
            "what": "Off-policy actions.", "where": "here", "got": "3", "expected": "none", "fix": "log none"
        }  # fmt: skip
        refused(409, session.end)  # nothing was logged
        session.service.close()

    asyncio.run(main())


def test_a_repeated_request_is_executed_once(serve):
    async def play(session):
        first = session("start_episode", StartEpisode(request_id="s"))
        assert session("start_episode", StartEpisode(request_id="s")) == first
        e = first.episode_id
        for _ in range(2):
            assert session.act(e, request_id="1") == Action(2, 7)
            session.reward(1.0, e, request_id="2")
            session("log_action", LogAction(episode_id=e, obs=X, action=0, request_id="3"))
        for _ in range(3):
            assert session.end(e, request_id="4") == Done()
        refused(410, session.end, e, request_id="5")
        refused(410, session.end, e)

    backend = StandIn()
    session = serve(play, backend)
    assert [call[0] for call in backend.calls] == ["start", "log_returns", "log_action", "end"]
    assert session.service.sessions.ended == 1


def test_a_request_repeated_while_the_first_one_runs_gets_the_same_answer(serve):
    async def play(session):
        session.start()
        first, second = session.act(request_id="r"), session.act(request_id="r")
        assert len(session.backend.asked) == 1
        first.cancel()  # the connection of the first one is lost
        session.backend.answer()
        assert await second == Action(2, 7)
        assert session.act(request_id="r") == Action(2, 7)
        assert session.backend.asked == []

    serve(play, StandIn(answers=False))


def test_a_request_id_that_another_verb_has_used_is_another_request(serve):
    async def play(session):
        session.start()
        first = session.act(request_id="1")
        refused(409, session.reward, request_id="1")
        session.backend.answer()
        assert await first == Action(2, 7)
        assert session.reward(request_id="1") == Done()
        assert [call[0] for call in session.backend.calls] == ["start", "log_returns"]

    serve(play, StandIn(answers=False))


def test_two_clients_that_count_their_requests_have_their_own_episodes(serve):
    async def play(session):
        first = session("start_episode", StartEpisode(request_id="0")).episode_id
        assert session("start_episode", StartEpisode(request_id="0", episode_id="mine")).episode_id == "mine"
        session.act("mine")
        second = session("start_episode", StartEpisode(request_id="0")).episode_id
        assert len({first, second, "mine"}) == 3

    serve(play)


def test_a_reward_that_comes_late_is_refused(serve):
    """It would count for the action that is not chosen yet."""

    async def play(session):
        session.start()
        for _ in range(2):
            pending = session.act()
            refused(409, session.reward)
            session.backend.answer()
            await pending
            session.reward()

    serve(play, StandIn(answers=False))


def test_submissions_that_wait_are_bounded(serve):
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


def test_a_submission_is_known_by_its_id_and_its_content(serve):
    submitted = []

    class Collects(StandIn):
        def submit(self, episodes: Any) -> Any:
            submitted.append(len(episodes))
            return super().submit(episodes)

    async def play(session):
        def episodes(action):
            played = Trajectory(obs=[X, X], actions=[action], rewards=[1.0], terminated=True)
            return SubmitEpisodes(episodes=[Episode(agents={"agent0": played})], request_id="1")

        for action in (0, 1, 0):  # of two clients that count their requests, and one of them again
            await session("submit_episodes", episodes(action))
        assert submitted == [1, 1]

    serve(play, Collects())


def test_the_last_few_responses_are_remembered(serve):
    async def play(session):
        session.start()
        session.act()
        for number in range(20):
            session.reward(1.0, request_id=str(number))
        session.reward(1.0, request_id="19")
        assert len(session.backend.calls) == 21
        (running,) = session.service.sessions
        assert len(running.responses) == 4

    serve(play)


def test_idle_time_counts_from_the_response(serve):
    async def play(session):
        session.start()
        session.start("waits")
        waiting = session.act("waits")
        session.now = 9.0
        first = session.act()
        session.now = 15.0
        session.backend.answer()
        session.backend.answer()
        await asyncio.gather(first, waiting)
        session.now = 24.0
        assert session.service.expire() == 0
        session.now = 25.5
        assert session.service.expire() == 2
        assert "idle for too long" in str(refused(410, session.act))
        assert session.service.sessions.expired == 2

    backend = StandIn(answers=False)
    serve(play, backend, idle_timeout_s=10.0)
    assert backend.calls[2:] == [("drop", "e"), ("drop", "waits")]


def test_an_episode_that_waits_for_an_action_is_not_idle(serve):
    async def play(session):
        session.start()
        future = session.act()
        session.now = 1000.0
        assert session.service.expire() == 0
        session.backend.answer()
        assert (await future).action == 2

    serve(play, StandIn(answers=False), idle_timeout_s=10.0)


def test_a_timer_drops_idle_episodes():
    async def main() -> None:
        backend = StandIn()
        service = Service(backend, Limits(idle_timeout_s=0.01))
        service.start()
        service.call("start_episode", StartEpisode(episode_id="e"), "me")
        async with asyncio.timeout(60):
            while len(service.sessions):
                await asyncio.sleep(0.01)
        assert ("drop", "e") in backend.calls
        service.close()

    asyncio.run(main())


def test_caps_on_episodes(serve):
    async def play(session):
        session.start("1")
        session.start("2")
        error = refused(429, session.start, "3")
        assert (error.parts["where"], error.retry_after_s) == ("max_episodes_per_client", 0.5)
        session.client = "another"
        session.start("3")
        assert refused(429, session.start, "4").parts["where"] == "max_episodes"
        session.client = "me"
        session.act("1")
        session.end("1")
        session.start("4")
        assert session("statistics")["clients"] == 2

    serve(play, max_episodes=3, max_episodes_per_client=2, retry_after_s=0.5)


def test_caps_on_pending_requests(serve):
    async def play(session):
        for name in "abcd":
            session.start(name)
        futures = [session.act("a"), session.act("b")]
        error = refused(429, session.act, "c")
        assert (error.parts["where"], error.retry_after_s) == ("max_pending_per_client", 1.0)
        session.client = "another"
        futures.append(session.act("c"))
        assert refused(429, session.act, "d").parts["where"] == "max_pending"
        refused(413, session, "get_actions", GetActions(observations=dict.fromkeys("abcde", X)))
        for _ in range(3):
            session.backend.answer()
        await asyncio.gather(*futures)
        futures = [session.act("d")]
        session.backend.answer()
        await asyncio.gather(*futures)

    serve(play, StandIn(answers=False), max_pending=3, max_pending_per_client=2, max_episodes_per_request=4)


def test_ids_are_bounded(serve):
    async def play(session):
        for name in ("", "x" * 9):
            refused(422, session.start, name)
            refused(422, session.start, "e", request_id=name)
        session.start("x" * 8)

    serve(play, max_id_length=8)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e10, True, {"a": 1.0}])
def test_rewards_of_a_learning_server_are_finite_and_not_enormous(serve, reward):
    async def play(session):
        session.start()
        session.act()
        refused(422, session.reward, reward)
        session.reward(1e6)

    serve(play, StandIn(learns=True))


def test_infos_of_a_learning_server_are_plain(serve):
    async def play(session):
        session.start()
        session.act()
        deep: Any = "x"
        for _ in range(40):
            deep = [deep]
        for info in ({"a": float("nan")}, {"a": b"bytes"}, {"a": deep}, {"a": {1: 2}}, {"a": 2**70}):
            refused(422, session.reward, 1.0, info=info)
        session.reward(1.0, info={"a": {"b": [1, 2.5, True, None, "text"]}})

    serve(play, StandIn(learns=True))


def test_masks_are_checked_with_observations_and_logged_actions(serve):
    def obs(*mask: int) -> dict[str, Any]:
        return {"action_mask": list(mask), "x": X}

    async def play(session):
        session.start()
        assert "allows no action" in str(refused(422, session.act, obs=obs(0, 0, 0)))
        session.act(obs=obs(0, 1, 0))
        error = refused(422, session, "log_action", LogAction(episode_id="e", obs=obs(0, 1, 0), action=2))
        assert "excludes" in str(error)
        session("log_action", LogAction(episode_id="e", obs=obs(0, 1, 0), action=1))
        session.end(obs=obs(0, 0, 0))  # nobody acts after the last observation

    serve(play, StandIn(MASKED))


class TestSeveralAgents:
    def test_values_are_checked_by_agent(self, serve):
        async def play(session):
            session.start()
            got = session.act(obs={"a": X, "boxes": 3})
            assert got == Action({"a": 2, "boxes": 2}, 7)
            assert refused(422, session.act, obs={"a": X, "nobody": 3}).parts["got"] == "nobody"
            assert "'boxes'" in refused(422, session.act, obs={"a": X, "boxes": 4}).parts["where"]
            refused(422, session.act, obs=X)
            refused(422, session.act, obs={})
            refused(422, session.act, obs={3: X})
            session.reward({"a": 1.0, "boxes": -1})
            refused(409, session.reward, {"b": 1.0})
            refused(422, session.reward, 1.0)
            refused(422, session.reward, {"a": 1.0}, info={"a": 3})
            session("log_action", LogAction(episode_id="e", obs={"b": X}, action={"b": 1}))
            error = refused(422, session, "log_action", LogAction(episode_id="e", obs={"b": X}, action={"a": 1}))
            assert "other agents" in str(error)
            session("end_agents", EndAgents(episode_id="e", observations={"a": None, "boxes": 2}))
            refused(409, session, "end_agents", EndAgents(episode_id="e", observations={"a": None}))
            session.end(obs={"b": X})

        backend = StandIn(multi_agent=True)
        serve(play, backend)
        assert [call[0] for call in backend.calls] == ["start", "log_returns", "log_action", "end_agents", "end"]
        assert backend.calls[3][2] == {"a": None, "boxes": 2}

    def test_observations_of_one_space_are_read_together(self, serve):
        async def play(session):
            for name in "123":
                session.start(name)
            observations = {name: {"a": [0.0, float(name) / 4], "b": X, "boxes": int(name)} for name in "123"}
            got = session("get_actions", GetActions(observations=observations))
            assert got.actions == {name: {"a": 2, "b": 2, "boxes": 2} for name in "123"}

        class Keeps(StandIn):
            def request_actions(self, observations: Any, on_done: Any) -> None:
                self.calls.append(("asked", observations))
                super().request_actions(observations, on_done)

        backend = Keeps(multi_agent=True)
        serve(play, backend)
        (asked,) = [call[1] for call in backend.calls if call[0] == "asked"]
        assert [float(asked[name]["a"][1]) for name in "123"] == [0.25, 0.5, 0.75]
        assert [int(asked[name]["boxes"]) for name in "123"] == [1, 2, 3]

    def test_agents_of_one_episode_may_ask_apart(self, serve):
        async def play(session):
            session.start()
            futures = [session.act(obs={"a": X}), session.act(obs={"b": X})]
            refused(409, session.act, obs={"b": X, "boxes": 1})
            session.backend.answer()
            session.backend.answer()
            assert [list((await future).action) for future in futures] == [["a"], ["b"]]

        serve(play, StandIn(multi_agent=True, answers=False))

    def test_there_is_a_cap(self, serve):
        async def play(session):
            session.start()
            refused(413, session.act, obs={"a": X, "b": X, "boxes": 1})

        serve(play, StandIn(multi_agent=True), max_agents=2)

    def test_a_single_agent_has_no_agents(self, serve):
        async def play(session):
            session.start()
            refused(422, session, "end_agents", EndAgents(episode_id="e", observations={"a": X}))
            refused(422, session.act, obs={"a": X})

        serve(play)


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
            with pytest.raises(RequestError, match="of other agents"):
                await session("submit_episodes", SubmitEpisodes(episodes=[Episode(agents=agents)]))

    serve(play)


def test_weights_and_models_come_from_a_thread(serve):
    async def play(session):
        assert await session.service.weights("default_policy") == b"default_policy"
        for file in (session.service.weights, session.service.onnx):
            with pytest.raises(RequestError, match="An unknown policy"):
                file("another")  # at once: there is nothing to keep for those who request it too
        with pytest.raises(RequestError, match="no ONNX model"):
            await session.service.onnx("default_policy")

    serve(play)


def test_verbs_without_a_body(serve):
    async def play(session):
        hello = session("hello")
        assert (hello.server, hello.version, hello.limits["max_episodes"]) == ("stand-in", 7, 10_000)
        session.start()
        assert session("health").episodes == 1
        assert session("statistics")["of"] == "the backend"
        assert session("statistics")["episodes_running"] == 1
        assert refused(404, session, "no_verb").parts["got"] == "no_verb"

    serve(play)


def test_closing_fails_what_waits_and_drops_what_runs(serve):
    async def play(session):
        session.start()
        future = session.act()
        session.service.close()
        session.service.close()
        with pytest.raises(RequestError) as caught:
            await future
        assert caught.value.status == 503
        session.backend.answer()  # too late, and without effect
        assert refused(503, session.act).retry_after_s == 1.0

    backend = StandIn(answers=False)
    serve(play, backend)
    assert backend.calls[-1] == ("drop", "e")
    assert backend.closed == 1
