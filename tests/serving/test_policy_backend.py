"""Served episodes get the actions of the policy itself, for any combination of requests."""

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PPO, CheckpointError, ConfigError, JaxPolicy, NonFiniteError, PolicyError, PPOTrainer
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.policy_backend import PolicyBackend
from rollax.serving.protocol import Actions, Episode, Trajectory
from tests.algorithms.envs import TwoAgents
from tests.serving.served_policies import CONTINUOUS, DISCRETE, LSTM, SingleEpisode, observations, runner
from tests.serving.service_session import refused


@asynccontextmanager
async def attached(backend: PolicyBackend) -> AsyncIterator[None]:
    """Attaches a backend to the event loop, and closes it in any case."""
    backend.attach(asyncio.get_running_loop())
    try:
        yield
    finally:
        backend.close()


@asynccontextmanager
async def served(policy: PolicyRunner, *episode_ids: str, **settings: Any) -> AsyncIterator[PolicyBackend]:
    """An attached backend of one policy, with these running episodes."""
    backend = PolicyBackend({"default_policy": policy}, **settings)
    async with attached(backend):
        for episode_id in episode_ids:
            backend.start_episode(episode_id, True)
        yield backend


def ask(backend: PolicyBackend, asked: Mapping[str, Any]) -> asyncio.Future[Actions]:
    """Requests actions; returns a future of the result."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def done(result: Actions | BaseException) -> None:
        def set_result() -> None:
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        loop.call_soon_threadsafe(set_result)

    backend.request_actions(asked, done)
    return future


@pytest.mark.long
async def test_state_is_kept_per_episode(recurrent):
    single = {name: SingleEpisode(recurrent) for name in "abc"}
    async with served(recurrent, *"abc") as backend:
        for step, names in enumerate(["abc", "a", "cb", "abc", "b", "ab"]):
            obs = dict(zip(names, observations(len(names)), strict=True))
            # Single requests and one with several episodes, in one pass.
            futures = [ask(backend, {name: obs[name]}) for name in names[:1]] + [
                ask(backend, {name: obs[name] for name in names[1:]}) for _ in names[1:2]
            ]
            actions = {key: value for future in futures for key, value in (await future).actions.items()}
            assert list(actions) == list(names)
            for name in names:
                np.testing.assert_allclose(actions[name], single[name].act(obs[name]), rtol=1e-5)
                backend.log_returns(name, 0.5 * step, None)
                single[name].reward += 0.5 * step
            if step in (1, 3):
                seen, taken = observations(1)[0], CONTINUOUS.low
                backend.log_action("a", seen, taken)
                single["a"].log(seen, taken)
        backend.end_episode("a", observations(1)[0], False)
        backend.start_episode("a", True)
        first = observations(1)[0]
        got = (await ask(backend, {"a": first})).actions["a"]
        np.testing.assert_allclose(got, SingleEpisode(recurrent).act(first), rtol=1e-5)
    assert backend.hello().policies["default_policy"].recurrent


async def test_a_logged_action_comes_before_the_next_request(recurrent):
    single = SingleEpisode(recurrent)
    async with served(recurrent, "e") as backend:
        seen, taken = observations(3), CONTINUOUS.high
        for obs, reward in zip(seen[:2], (3.0, -2.0), strict=True):
            backend.log_action("e", obs, taken)
            backend.log_returns("e", reward, None)
            single.log(obs, taken)
            single.reward = reward
        got = await ask(backend, {"e": seen[2]})
        np.testing.assert_allclose(got.actions["e"], single.act(seen[2]), rtol=1e-5)


async def test_requests_that_arrive_together_share_a_pass(plain):
    names, seen = [str(number) for number in range(20)], observations(20)
    async with served(plain, *names) as backend:
        for rounds in (1, 2):  # the first pass is in a thread, because it compiles
            got = await asyncio.gather(*[ask(backend, {name: obs}) for name, obs in zip(names, seen, strict=True)])
            assert backend.statistics()["batches_total"] == rounds
            assert [one.actions for one in got] == [
                {name: plain.compute_single_action(obs)} for name, obs in zip(names, seen, strict=True)
            ]
        assert backend.statistics()["actions_total"] == 40


async def test_it_can_serve_a_second_server_after_the_first(plain):
    backend = PolicyBackend({"default_policy": plain})

    seen = observations(1)[0]
    for _ in range(2):
        async with attached(backend):
            backend.start_episode("e", True)
            got = await asyncio.wait_for(ask(backend, {"e": seen}), 60.0)
            assert got.actions["e"] == plain.compute_single_action(seen)


async def test_passes_have_a_maximum_size(plain, monkeypatch):
    monkeypatch.setattr("rollax.serving.acting._MOST_ROWS", 8)
    seen = observations(20)
    async with served(plain, *map(str, range(20))) as backend:
        got = await ask(backend, {str(number): obs for number, obs in enumerate(seen)})
        assert list(got.actions.values()) == [plain.compute_single_action(obs) for obs in seen]


async def test_each_agent_has_its_own_policy_and_state(recurrent, plain):
    two = {"first": runner(policy_id="first"), "second": recurrent}
    mapping = {"f": "first", "s": "second"}
    backend = PolicyBackend(two, lambda agent, episode: mapping[agent[0]], multi_agent=True)
    single = {name: SingleEpisode(recurrent) for name in ("s1", "s2")}

    async with attached(backend):
        backend.start_episode("e", True)
        for agents in (["f", "s1"], ["s2"], ["s1", "s2", "f"]):
            obs = dict(zip(agents, observations(len(agents)), strict=True))
            got = (await ask(backend, {"e": obs})).actions["e"]
            assert list(got) == agents
            for agent in agents:
                act = two["first"].compute_single_action if agent == "f" else single[agent].act
                np.testing.assert_allclose(got[agent], act(obs[agent]), rtol=1e-5)
            backend.log_returns("e", dict.fromkeys(agents, 1.0), None)
            for agent in set(agents) - {"f"}:
                single[agent].reward += 1.0
        backend.end_agents("e", {"s1": None}, False)
        obs = observations(1)[0]
        got = (await ask(backend, {"e": {"s1": obs}})).actions["e"]["s1"]
        np.testing.assert_allclose(got, SingleEpisode(recurrent).act(obs), rtol=1e-5)
        assert backend.spaces_of("e", "s9")[1] == CONTINUOUS
        assert backend.spaces_of("e", "f")[1] == DISCRETE
        backend.log_action("e", {"s2": obs}, {"s2": CONTINUOUS.low})
        backend.end_episode("e", {}, False)
    assert backend.statistics()["episode_reward_mean"] == 6.0


async def test_actions_are_random_only_with_explore(plain):
    for explore in (False, True):
        async with served(plain, "e", explore=explore) as backend:
            seen = np.zeros(2, np.float32)
            drawn = {(await ask(backend, {"e": seen})).actions["e"] for _ in range(50)}
        assert (len(drawn) > 1) == explore


@pytest.mark.parametrize("name", ["explore", "multi_agent"])
def test_switches_are_booleans(plain, name):
    with pytest.raises(ConfigError, match=rf"{name} of PolicyBackend(.|\n)*got: +no\n(.|\n)*True or False"):
        PolicyBackend({"default_policy": plain}, **{name: "no"})


async def test_a_failed_pass_fails_its_requests_and_no_others():
    broken = runner()
    weights = broken.policy.get_weights()
    async with served(broken, "a", "b") as backend:
        seen = observations(1)[0]
        for _ in range(2):
            broken.policy.set_weights({name: np.full_like(value, np.nan) for name, value in weights.items()})
            futures = [ask(backend, {name: seen}) for name in "ab"]
            got = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(one) for one in got] == [NonFiniteError] * 2
            broken.policy.set_weights(weights)
            assert (await ask(backend, {"a": seen})).actions == {"a": broken.compute_single_action(seen)}


class OneActionTooFewPolicy(JaxPolicy):
    def act_greedily(self, obs_batch: Any) -> Any:
        return super().act_greedily(obs_batch)[1:]


class OneActionTooFew(PPO):
    policy_class = OneActionTooFewPolicy


async def test_a_policy_with_too_few_actions_fails_its_requests():
    async with served(runner(OneActionTooFew), "a", "b") as backend:
        for _ in range(2):
            futures = [ask(backend, {name: seen}) for name, seen in zip("ab", observations(2), strict=True)]
            for one in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(one, PolicyError)
                assert "policy 'default_policy', algorithm OneActionTooFew" in str(one)


async def test_a_failed_pass_of_a_logged_action_is_logged(caplog):
    broken = runner(action_space=CONTINUOUS, model=LSTM)
    weights = broken.policy.get_weights()
    broken.policy.set_weights({name: np.full_like(value, np.nan) for name, value in weights.items()})
    async with served(broken, "e") as backend:
        backend.log_action("e", observations(1)[0], CONTINUOUS.high)
        await asyncio.sleep(0)  # the pass is done, or begins in the thread that the end waits for
    assert "The memory of an agent does not contain a logged action: the forward pass failed" in caplog.text
    assert "NonFiniteError" in caplog.text


def test_warming_up_compiles_all_sizes():
    masked = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(1.0, 2.0, (2,))})
    policy = runner(observation_space=masked)
    backend = PolicyBackend({"default_policy": policy})
    backend.warm_up(4)
    assert sorted(backend.actors["default_policy"]._seconds) == [1, 2, 4]
    assert policy.policy.timestep == 0
    backend.close()


async def test_it_does_not_learn_but_counts_episodes(plain):
    async with served(plain, "e", version=5) as backend:
        assert not backend.hello().learns
        got = await ask(backend, {"e": observations(1)[0]})
        assert got.version == 5
        backend.log_returns("e", 2.0, None)
        backend.log_action("e", observations(1)[0], 1)
        backend.log_returns("e", 1.0, None)
        backend.end_episode("e", observations(1)[0], False)
        trajectory = Trajectory(obs=[0, 0], actions=[0], rewards=[5.0])
        answer = backend.submit([Episode(agents={"agent0": trajectory})])
        assert (answer.accepted, answer.too_old, answer.version) == (0, 0, 5)
        backend.start_episode("dropped", True)
        backend.drop_episode("dropped")
    statistics = backend.statistics()
    assert statistics["episodes_total"] == 2
    assert statistics["episode_reward_mean"] == 4.0
    assert statistics["episode_len_mean"] == 1.5
    assert statistics["actions_total"] == 1
    assert backend._episodes == {}


@pytest.fixture(scope="module")
def two_policies(tmp_path_factory):
    multiagent = {"policies": {"p": None, "q": None}, "policy_mapping_fn": lambda agent: "p"}
    with PPOTrainer(TwoAgents, {"multiagent": multiagent, "model": {"fcnet_hiddens": [4]}, "seed": 0}) as trainer:
        return trainer.save(tmp_path_factory.mktemp("two"))


def test_the_policy_is_served_as_onnx(plain):
    session = pytest.importorskip("onnxruntime", reason="pip install 'rollax[test]'").InferenceSession
    backend = PolicyBackend({"default_policy": plain})
    model = session(backend.onnx("default_policy"))
    seen = observations(5)
    (actions,) = model.run(None, {model.get_inputs()[0].name: seen})
    assert actions.tolist() == [plain.compute_single_action(obs) for obs in seen]
    backend.close()


class TestCheckpoints:
    def test_a_mapping_function_must_be_given_again(self, two_policies):
        with pytest.raises(CheckpointError, match="--policy-mapping"):
            PolicyBackend.from_checkpoint(two_policies)
        with pytest.raises(ConfigError, match="unknown policies"):
            PolicyBackend.from_checkpoint(two_policies, policy_mapping={"a": "r"})
        with pytest.raises(ConfigError, match="has several policies, but no mapping from agents to policies"):
            PolicyBackend.from_checkpoint(two_policies, policy_mapping={"a": "p"}, multi_agent=False)

    def test_a_table_maps_agents(self, two_policies):
        backend = PolicyBackend.from_checkpoint(two_policies, policy_mapping={"a": "p", "b": "q", 0: "q"})  # type: ignore[dict-item]
        assert backend.hello().multi_agent
        assert sorted(backend.hello().policies) == ["p", "q"]
        backend.start_episode("e", True)
        for agent in ("b", "0"):
            assert backend._memory("e", agent).actor is backend.actors["q"]
        refused(422, backend.spaces_of, "e", "c", says="The agent has no policy")
        backend.close()

    def test_a_function_maps_agents_and_can_read_the_episode(self, two_policies):
        @functools.lru_cache  # episodes can be keys, as in training
        def policy_of(agent, episode):
            return "q" if episode.episode_id == "e1" else "p"

        backend = PolicyBackend.from_checkpoint(two_policies, policy_mapping=policy_of)
        for episode_id, policy_id in (("e1", "q"), ("e2", "p")):
            backend.start_episode(episode_id, True)
            assert backend._memory(episode_id, "a").actor is backend.actors[policy_id]
        backend.close()

    def test_a_function_that_keeps_data_in_the_episode_is_refused(self, two_policies):
        """The data would not be there at the call for the next agent, so both could get the same policy."""

        def seat_of(agent, episode):
            return episode.user_data.setdefault("seats", {"a": "p", "b": "q"})[agent]

        backend = PolicyBackend.from_checkpoint(two_policies, policy_mapping=seat_of)
        backend.start_episode("e", True)
        with pytest.raises(PolicyError):
            backend._memory("e", "a")
        backend.close()
