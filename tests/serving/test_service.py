"""Requests in all orders: those that are executed, and those that are refused."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import numpy as np
import pytest

from rollax.errors import EnvError, NonFiniteError, RequestError
from rollax.serving.protocol import Action, Actions, Done
from tests.serving.service_session import X, refused, with_service
from tests.serving.stand_in_backend import MASKED, StandIn


@with_service()
async def test_the_backend_gets_values_in_the_types_of_the_spaces(session):
    assert session.start(training_enabled=False) == "e"
    assert session.act() == Action(2, 7)
    assert session.reward(2, info={"a": [1, "x", None]}) == Done()
    assert session("log_action", episode_id="e", obs=X, action=1) == Done()
    assert session.end(truncated=True) == Done()
    assert len(session.service.sessions) == 0
    assert session.backend.verbs == ["start", "log_returns", "log_action", "end"]
    assert session.backend.calls[0] == ("start", "e", False)
    assert session.backend.calls[1] == ("log_returns", "e", 2.0, {"a": [1, "x", None]})
    _, _, obs, action = session.backend.calls[2]
    assert obs.dtype == np.float32
    np.testing.assert_array_equal(obs, X)
    assert action == 1
    assert session.backend.calls[3][3] is True


@with_service()
async def test_the_server_makes_missing_ids(session):
    assert len({session("start_episode").episode_id for _ in range(10)}) == 10
    assert len(session.service.sessions) == 10


@with_service()
async def test_many_episodes_in_one_request(session):
    for name in "abc":
        session.start(name)
    assert session("get_actions", observations=dict.fromkeys("abc", X)) == Actions({"a": 2, "b": 2, "c": 2}, 7)
    assert session("get_actions", observations={}) == Actions({}, 7)
    assert refused(404, session, "get_actions", observations={"a": X, "z": X}).parts["got"] == "z"
    assert session.service.call("health", None, "me").pending == 0


@with_service()
async def test_unknown_ended_and_duplicate_episodes(session):
    for verb in (session.act, session.reward, session.end):
        assert refused(404, verb, episode_id="nobody").parts["fix"].startswith("call start_episode")
    session.start()
    assert "end it first" in refused(409, session.start).parts["fix"]
    session.act()
    session.end()
    for verb in (session.act, session.reward, session.end):
        assert refused(410, verb).parts["what"] == "The episode has ended."
    assert session.start() == "e"  # the id can be used again
    session.act()


@with_service()
async def test_an_episode_without_an_action_is_dropped(session):
    session.start()
    assert "dropped" in str(refused(409, session.end))
    refused(410, session.end)
    session.start()
    refused(409, session.reward)
    session.service.close()
    assert session.backend.verbs == ["start", "drop", "start", "drop"]


@with_service(answers=False)
async def test_a_waiting_episode_refuses_a_second_request(session):
    session.start()
    session.start("other")
    future = session.act()
    assert isinstance(future, Awaitable)
    refused(409, session.act)
    refused(409, session.end)
    refused(409, session, "log_action", episode_id="e", obs=X, action=1)
    refused(409, session, "get_actions", observations={"other": X, "e": X})
    assert session.service.call("health", None, "me").pending == 1
    session.backend.answer()
    assert await future == Action(2, 7)
    other = session.act("other")
    session.backend.answer()
    assert (await other).action == 2
    session.end()


@with_service(answers=False)
async def test_answers_from_another_thread_arrive_in_the_loop(session):
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


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (NonFiniteError("NaN weights."), RequestError, 500),
        (RequestError("Stopping.", status=503, retry_after_s=2.0), RequestError, 503),
        (ZeroDivisionError("a bug"), ZeroDivisionError, None),
    ],
)
@with_service(answers=False)
async def test_an_error_of_the_backend_frees_the_episode(session, error, kind, status):
    session.start()
    future = session.act(request_id="r")
    session.backend.answer(error)
    with pytest.raises(kind) as caught:
        await future
    assert getattr(caught.value, "status", None) == status
    again = session.act(request_id="r")  # it was not executed, so it can be repeated
    session.backend.answer()
    assert (await again).action == 2


@with_service()
async def test_a_refusal_of_the_backend_changes_nothing(session):
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


class Strict(StandIn):
    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        raise EnvError("Off-policy actions.", "here", 3).expected("none", "log none")


@with_service(backend=Strict)
async def test_other_errors_of_the_backend_become_errors_of_the_request(session):
    session.start()
    error = refused(422, session, "log_action", episode_id="e", obs=X, action=1)
    parts = {"what": "Off-policy actions.", "where": "here", "got": "3", "expected": "none", "fix": "log none"}
    assert error.parts == parts
    refused(409, session.end)  # nothing was logged


@with_service(answers=False)
async def test_rewards_are_accepted_from_the_first_observation_on(session):
    """Also while a request waits: the reward belongs to its action, as in an external environment."""
    session.start()
    refused(409, session.reward, 1.0)
    session.reward(0.0)
    for number in (1.0, 2.0):
        pending = session.act()
        session.reward(number)
        session.backend.answer()
        await pending
    assert [call[2] for call in session.backend.calls if call[0] == "log_returns"] == [0.0, 1.0, 2.0]


@with_service(MASKED)
async def test_masks_are_checked_with_observations_and_logged_actions(session):
    obs = {mask: {"action_mask": list(map(int, mask)), "x": X} for mask in ("000", "010")}
    session.start()
    assert "allows no action" in str(refused(422, session.act, obs=obs["000"]))
    session.act(obs=obs["010"])
    error = refused(422, session, "log_action", episode_id="e", obs=obs["010"], action=2)
    assert "not allowed by its action mask" in str(error)
    session("log_action", episode_id="e", obs=obs["010"], action=1)
    session.end(obs=obs["000"])  # no action follows the last observation


class TestSeveralAgents:
    @with_service(multi_agent=True)
    async def test_values_are_checked_by_agent(self, session):
        session.start()
        assert session.act(obs={"a": X, "boxes": 3}) == Action({"a": 2, "boxes": 2}, 7)
        assert refused(422, session.act, obs={"a": X, "nobody": 3}).parts["got"] == "nobody"
        assert "'boxes'" in refused(422, session.act, obs={"a": X, "boxes": 4}).parts["where"]
        refused(422, session.act, obs=X)
        refused(422, session.act, obs={})
        refused(422, session.act, obs={3: X})
        session.reward({"a": 1.0, "boxes": -1})
        refused(409, session.reward, {"b": 1.0})
        refused(422, session.reward, 1.0)
        refused(422, session.reward, {"a": 1.0}, info={"a": 3})
        session("log_action", episode_id="e", obs={"b": X}, action={"b": 1})
        error = refused(422, session, "log_action", episode_id="e", obs={"b": X}, action={"a": 1})
        assert "not of the same agents" in str(error)
        session("end_agents", episode_id="e", observations={"a": None, "boxes": 2})
        refused(409, session, "end_agents", episode_id="e", observations={"a": None})
        session.act(obs={"a": X})
        session.end(obs={"b": X, "a": None, "boxes": [], "nobody": X})  # one that has ended, and one that never acted
        assert session.backend.verbs == ["start", "log_returns", "log_action", "end_agents", "end"]
        assert session.backend.calls[3][2] == {"a": None, "boxes": 2}
        assert list(session.backend.calls[4][2]) == ["b"]

    @with_service(multi_agent=True, answers=False)
    async def test_observations_of_one_space_are_converted_together(self, session):
        for name in "123":
            session.start(name)
        observations = {name: {"a": [0.0, float(name) / 4], "b": X, "boxes": int(name)} for name in "123"}
        pending = session("get_actions", observations=observations)
        ((asked, _),) = session.backend.asked
        session.backend.answer()
        assert (await pending).actions == {name: {"a": 2, "b": 2, "boxes": 2} for name in "123"}
        assert [float(asked[name]["a"][1]) for name in "123"] == [0.25, 0.5, 0.75]
        assert [int(asked[name]["boxes"]) for name in "123"] == [1, 2, 3]

    @with_service(multi_agent=True, answers=False)
    async def test_agents_of_one_episode_can_request_separately(self, session):
        session.start()
        futures = [session.act(obs={"a": X}), session.act(obs={"b": X})]
        error = refused(409, session.act, obs={"boxes": 1, "b": X})
        assert error.parts["got"] == "a second request for 'e', agent 'b', before the first is answered"
        session.backend.answer()
        session.backend.answer()
        assert [list((await future).action) for future in futures] == [["a"], ["b"]]

    @with_service(multi_agent=True, answers=False)
    async def test_rewards_are_accepted_from_an_agents_first_observation_to_its_end(self, session):
        session.start()
        pending = session.act(obs={"a": X})
        refused(409, session.reward, {"a": 5.0, "b": 1.0})
        session.reward({"a": 5.0, "b": 0})
        session.backend.answer()
        await pending
        session("end_agents", episode_id="e", observations={"a": None})
        refused(409, session.reward, {"a": 1.0})
        session.reward({"a": 0.0})
        assert [call[2] for call in session.backend.calls if call[0] == "log_returns"] == [{"a": 5.0}, {}]

    @with_service(multi_agent=True, max_agents=2)
    async def test_the_number_of_agents_is_limited(self, session):
        session.start()
        refused(413, session.act, obs={"a": X, "b": X, "boxes": 1})

    @with_service()
    async def test_single_agent_episodes_refuse_agents(self, session):
        session.start()
        refused(422, session, "end_agents", episode_id="e", observations={"a": X})
        refused(422, session.act, obs={"a": X})


@with_service()
async def test_weights_and_models_are_made_in_a_thread(session):
    assert await session.service.weights("default_policy") == b"default_policy"
    for file in (session.service.weights, session.service.onnx):
        with pytest.raises(RequestError, match="Unknown policy"):
            file("another")  # it raises at once, and no result is kept for parallel requests
    with pytest.raises(RequestError, match="no ONNX model"):
        await session.service.onnx("default_policy")


@with_service()
async def test_verbs_without_a_body(session):
    hello = session("hello")
    assert (hello.server, hello.version, hello.limits["max_episodes"]) == ("stand-in", 7, 10_000)
    session.start()
    assert session("health").episodes == 1
    assert session("statistics")["of"] == "the backend"
    assert session("statistics")["episodes_running"] == 1
    assert refused(404, session, "no_verb").parts["got"] == "no_verb"


@with_service(answers=False)
async def test_closing_fails_pending_requests_and_drops_running_episodes(session):
    session.start()
    future = session.act()
    session.service.close()
    session.service.close()
    with pytest.raises(RequestError) as caught:
        await future
    assert caught.value.status == 503
    session.backend.answer()  # too late, so without effect
    assert refused(503, session.act).retry_after_s == 1.0
    assert session.backend.calls[-1] == ("drop", "e")
    assert session.backend.closed == 1
