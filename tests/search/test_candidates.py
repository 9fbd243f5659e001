"""`CandidatePlayer`: which candidate plays which episodes with which seeds, independent of the number of slots."""

import logging
from collections import Counter, deque

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import EnvError, PolicyError, RolloutWorker
from rollax.algorithms.pg import PG
from rollax.env.restarting import EnvFailures
from rollax.errors import NonFiniteError
from rollax.models.outputs import Outputs
from rollax.ops.evolution import direction, episode_seed
from rollax.rollout import whole_episodes
from rollax.search.es import ES
from tests.env.refused import refused
from tests.env.worlds import ListVector
from tests.search.search_worlds import Drift, StepCounter
from tests.search.searches import assert_same_candidates, request

LINEAR = {"model": {"fcnet_hiddens": ()}, "observation_filter": "NoFilter", "seed": 0}


def worker_of(env=Drift, policy=ES, **config):
    return RolloutWorker(env, policy, config={**LINEAR, **config})


def play_stepwise(theta, task, *, offset=0.0, sign=False):
    """The return of one episode, played step by step, and its observations."""
    index, side, episode = task
    vector = (theta + np.float32((0.1, -0.1)[side]) * direction(5, 2, index, len(theta))).reshape(3, 2)
    env, total, seen = Drift({}), 0.0, []
    obs, _ = env.reset(seed=episode_seed(5, 2, index, episode))
    over = False
    while not over:
        seen.append(obs)
        action = np.clip(obs @ vector, -1, 1).astype(np.float32)
        obs, reward, over, _, _ = env.step(action)
        total += np.sign(reward + offset) if sign else reward + offset
    return total, np.array(seen, np.float64)


def test_returns_of_each_candidate():
    worker = worker_of(num_envs_per_worker=4, observation_filter="MeanStdFilter")
    result = worker.perform(request(3, episodes=2))
    theta = worker.get_policy().get_vector()
    assert result.indices.tolist() == [0, 1, 2]
    tasks = [(index, side, episode) for index in range(3) for side in range(2) for episode in range(2)]
    stepwise = [play_stepwise(theta, task) for task in tasks]
    expected = np.array([total for total, _ in stepwise]).reshape(3, 2, 2)
    np.testing.assert_allclose(result.returns, expected.mean(axis=2), rtol=1e-5)
    np.testing.assert_allclose([episode.reward for episode in result.episodes], expected.ravel(), rtol=1e-5)
    assert [episode.length for episode in result.episodes] == [len(seen) for _, seen in stepwise]
    assert result.lengths.tolist() == np.array([len(seen) for _, seen in stepwise]).reshape(3, 4).sum(axis=1).tolist()
    for state, (_, seen) in zip(result.filters, stepwise, strict=True):
        assert state["count"] == len(seen)
        np.testing.assert_allclose(state["mean"], seen.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(state["squares"], seen.var(axis=0) * len(seen), rtol=1e-4, atol=1e-10)


def test_shaped_rewards_do_not_change_the_metrics():
    worker = worker_of(num_envs_per_worker=3)
    theta = worker.get_policy().get_vector()
    # All rewards are negative: an offset of 2 changes the signs of some.
    result = worker.perform(request(2, sign_rewards=True, reward_offset=2.0))
    expected = [[play_stepwise(theta, (k, side, 0), sign=True, offset=2.0)[0] for side in range(2)] for k in range(2)]
    np.testing.assert_allclose(result.returns, expected, rtol=1e-6)
    assert result.returns.min() < 0 < result.returns.max()
    np.testing.assert_allclose(result.episodes[3].reward, play_stepwise(theta, (1, 1, 0))[0], rtol=1e-5)
    clipped = worker_of(num_envs_per_worker=3, clip_rewards=0.5).perform(request(2))
    assert (clipped.returns >= -0.5 * result.lengths.max()).all()
    # Clipped after the offset: each reward is 0.5, not -0.5 + 100.
    above = worker_of(num_envs_per_worker=3, clip_rewards=0.5).perform(request(2, reward_offset=100.0))
    np.testing.assert_array_equal(above.returns.sum(axis=1), 0.5 * above.lengths)


@pytest.mark.long
@pytest.mark.parametrize("filter_name", ["NoFilter", "MeanStdFilter"])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_results_do_not_depend_on_the_number_of_slots(filter_name, noise):
    results = []
    for slots in (1, 5, 40):
        worker = worker_of(num_envs_per_worker=slots, observation_filter=filter_name)
        worker.get_policy().set_weights({"head.kernel": np.float32([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]])})
        results.append(worker.perform(request(6, episodes=3, action_noise=noise)))
    for other in results[1:]:
        assert_same_candidates(other, results[0])


def test_each_episode_has_its_own_action_noise():
    worker = worker_of(num_envs_per_worker=4)
    quiet, noisy = (worker.perform(request(3, action_noise=noise)) for noise in (0.0, 0.5))
    assert (quiet.returns != noisy.returns).all()
    np.testing.assert_array_equal(worker.perform(request(3, action_noise=0.5)).returns, noisy.returns)


def test_seeds_are_shared_by_both_sides_of_a_direction_and_otherwise_distinct():
    resets = deque()
    worker_of(num_envs_per_worker=4, env_config={"resets": resets}).perform(request(5, episodes=2))
    assert Counter(resets) == {episode_seed(5, 2, index, episode): 2 for index in range(5) for episode in range(2)}


def test_each_episode_can_have_its_own_seed():
    resets = deque()
    worker = worker_of(num_envs_per_worker=4, env_config={"resets": resets})
    result = worker.perform(request(5, episodes=2, shared_starts=False))
    assert Counter(resets) == {episode_seed(5, 2, index, part): 1 for index in range(5) for part in range(4)}
    other = worker_of(num_envs_per_worker=3).perform(request(5, episodes=2, shared_starts=False))
    np.testing.assert_array_equal(result.returns, other.returns)


def test_sub_environments_without_a_candidate_are_not_stepped():
    # 6 candidates in 9 sub-environments: 3 are never stepped, and none after its episode's end (`Drift` asserts that).
    steps, resets = deque(), deque()
    worker = worker_of(num_envs_per_worker=9, env_config={"steps": steps, "resets": resets})
    result = worker.perform(request(3))
    assert set(steps) == set(range(6))
    assert len(steps) == result.lengths.sum()
    assert len(resets) == 6
    result = worker.perform(request(6))  # all are used again
    assert set(list(steps)[-int(result.lengths.sum()) :]) == set(range(9))


def batched(count):
    """A simulator of several points, which are always stepped together."""
    return lambda context: ListVector(count, lambda: Drift({}))


def sync(context):
    return SyncVectorEnv([lambda: Drift({})] * 7, autoreset_mode=AutoresetMode.DISABLED)


@pytest.mark.short("2-VectorEnv")
@pytest.mark.parametrize("env", [batched(7), sync], ids=["VectorEnv", "SyncVectorEnv"])
@pytest.mark.parametrize("count", [2, 9])
def test_environments_that_step_all_of_their_sub_environments(env, count):
    expected = worker_of(num_envs_per_worker=3, observation_filter="MeanStdFilter").perform(request(count))
    worker = worker_of(env, observation_filter="MeanStdFilter")
    for _ in range(2):
        assert_same_candidates(worker.perform(request(count)), expected)
    assert len(expected.episodes) == 2 * count


@pytest.mark.long
@pytest.mark.usefixtures("small_ray")
@pytest.mark.parametrize("wait_ms", [0.0, 1e4])
def test_remote_sub_environments(wait_ms):
    expected = worker_of(num_envs_per_worker=3, observation_filter="MeanStdFilter").perform(request(4))
    remote = {"remote_worker_envs": True, "remote_env_batch_wait_ms": wait_ms}
    worker = worker_of(num_envs_per_worker=3, observation_filter="MeanStdFilter", **remote)
    assert_same_candidates(worker.perform(request(4)), expected)
    np.testing.assert_array_equal(worker.perform(request(1)).returns, expected.returns[:1])
    assert_same_candidates(worker.perform(request(4)), expected)
    worker.stop()


def test_a_lost_episode_is_played_again():
    config = {"num_envs_per_worker": 3, "observation_filter": "MeanStdFilter"}
    expected = worker_of(**config).perform(request(4))
    env_config = {"resets": deque(), "fails": deque([3, 7])}
    worker = worker_of(**config, restart_failed_sub_environments=True, env_config=env_config)
    assert_same_candidates(worker.perform(request(4)), expected)
    assert not env_config["fails"]


class Unplayable(Drift):
    """Every fourth level fails in each of its attempts: some in their reset, others in their first step."""

    def reset(self, *, seed=None, options=None):
        started = super().reset(seed=seed, options=options)
        self.level = int(self.np_random.integers(8))
        if self.level == 0:
            raise ValueError("no such level")
        return started

    def step(self, action):
        if self.level == 1:
            raise ValueError("no way out")
        return super().step(action)


def test_an_episode_that_fails_with_its_seed_is_played_with_another(monkeypatch):
    monkeypatch.setattr(EnvFailures, "FIRST_PAUSE_S", 0.0)
    results = []
    for slots in (1, 5):
        worker = worker_of(Unplayable, num_envs_per_worker=slots, restart_failed_sub_environments=True)
        results.append(worker.perform(request(8)))
    assert_same_candidates(*results)


def test_a_call_after_one_that_raised():
    env_config = {"resets": deque(), "fails": deque([3])}
    worker = worker_of(num_envs_per_worker=3, env_config=env_config)
    refused(EnvError, worker.perform, request(4), says="no such level")
    expected = worker_of(num_envs_per_worker=2).perform(request(4))
    np.testing.assert_array_equal(worker.perform(request(4)).returns, expected.returns)


def test_sampling_and_evaluation_afterwards():
    worker = worker_of(num_envs_per_worker=4)
    worker.perform(request(1))  # two of four sub-environments are unused
    assert worker.sample().env_steps == 200
    assert len(worker.evaluate(6)) == 6
    expected = worker_of(num_envs_per_worker=1).perform(request(3))
    np.testing.assert_array_equal(worker.perform(request(3)).returns, expected.returns)


def lengths_of_ended(batch):
    """The lengths of the episodes that ended in a batch, with which they began."""
    ended = batch["eps_id"][batch["terminateds"]]
    return sorted(np.count_nonzero(batch["eps_id"] == episode_id) for episode_id in ended)


class TestMetricsOfSampling:
    """`get_metrics` returns the sampled episodes, whatever was played in between."""

    def test_are_kept_and_those_of_candidates_do_not_count(self):
        worker = worker_of(num_envs_per_worker=4, callbacks=StepCounter)
        batches = [worker.sample()]
        assert len(worker.perform(request(3)).episodes) == 6
        batches.append(worker.sample())
        worker.perform(request(5))
        metrics = worker.get_metrics()
        assert len(metrics) > 20
        assert [m.custom_metrics["steps"] for m in metrics] == [m.length for m in metrics]
        for batch in batches:
            lengths = lengths_of_ended(batch)
            episodes, metrics = metrics[: len(lengths)], metrics[len(lengths) :]
            assert sorted(episode.length for episode in episodes) == lengths
        assert metrics == worker.get_metrics() == []

    def test_after_an_error(self):
        env_config = {"resets": deque(), "fails": deque()}
        worker = worker_of(num_envs_per_worker=3, env_config=env_config)
        lengths = lengths_of_ended(worker.sample())
        env_config["fails"].append(len(env_config["resets"]) + 3)  # in the first steps of candidates
        refused(EnvError, worker.perform, request(4), says="no such level")
        lengths += lengths_of_ended(worker.sample())
        assert sorted(episode.length for episode in worker.get_metrics()) == sorted(lengths)


class Long(Drift):
    """Episodes of 60 steps."""

    def reset(self, *, seed=None, options=None):
        started = super().reset(seed=seed, options=options)
        self.left = 60
        return started


def test_a_long_episode_warns(monkeypatch, caplog):
    monkeypatch.setattr(whole_episodes, "_POLLS_BETWEEN_CHECKS", 10)
    monkeypatch.setattr(whole_episodes, "_LONG_EPISODE", 50)
    worker_of(num_envs_per_worker=2).perform(request(30))  # 30 episodes of 3 to 9 steps in each
    assert not caplog.records
    worker = worker_of(Long, num_envs_per_worker=3)
    for _ in range(2):
        worker.perform(request(2))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for part in ("after 59 steps", "max_episode_steps", "TimeLimit"):  # logged at the 60th poll
        assert part in record.getMessage()


@pytest.mark.parametrize("env", [Drift, batched(5)])
def test_callbacks_see_the_episodes_of_candidates(env):
    worker = worker_of(env, callbacks=StepCounter, **({"num_envs_per_worker": 5} if env is Drift else {}))
    result = worker.perform(request(4))
    assert [e.custom_metrics["steps"] for e in result.episodes] == [e.length for e in result.episodes]
    assert [e.policy_rewards["default_policy"] for e in result.episodes] == [[e.reward] for e in result.episodes]


class Scaled(nnx.Module):
    """A linear model with a variable that is not a parameter."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.head, self.scale = nnx.Linear(3, num_outputs, rngs=rngs), nnx.BatchStat(jnp.ones(()))

    def __call__(self, obs):
        return Outputs(policy=self.head(obs) * self.scale[...])


def test_a_model_with_state_that_is_not_a_parameter():
    config = {"num_envs_per_worker": 3, "model": {"custom_model": Scaled}}
    worker, fresh = worker_of(**config), worker_of(**config)
    before = worker.perform(request()).returns
    weights = worker.get_weights()["default_policy"]
    for each in (worker, fresh):
        each.set_weights({"default_policy": {**weights, "scale": np.float32(-2)}})
    after = worker.perform(request()).returns
    assert (after != before).any()
    np.testing.assert_array_equal(after, fresh.perform(request()).returns)


class Overflowing(Drift):
    """One observation in each episode is infinite, which its space allows."""

    def step(self, action):
        obs, *others = super().step(action)
        return np.full_like(obs, np.inf) if self.left == 1 else obs, *others


class Clock(gym.Env):
    """Shows a time in 64 bits."""

    observation_space = gym.spaces.Box(0, np.iinfo(np.int64).max, (1,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context):
        pass

    def reset(self, *, seed=None, options=None):
        return np.array([2**32 + 1]), {}

    def step(self, action):
        return np.array([2**32 + 2]), 1.0, True, False, {}


class TestRefused:
    def test_integers_that_jax_would_wrap(self):
        refused(EnvError, worker_of(Clock).perform, request(1), says="needs more than 32 bits...got:      4294967297")

    def test_infinite_observations_that_are_standardized(self):
        worker = worker_of(Overflowing, observation_filter="MeanStdFilter")
        refused(EnvError, worker.perform, request(2), says="cannot be standardized")
        with pytest.raises(NonFiniteError, match="an infinite observation gives such outputs too"):
            worker_of(Overflowing).perform(request(2))

    def test_environments_that_begin_episodes_by_themselves(self):
        def make(context):
            return SyncVectorEnv([lambda: Drift({})] * 2)

        refused(EnvError, worker_of(make).perform, request(), says="cannot start each episode...AutoresetMode.DISABLED")

    def test_other_policies(self):
        with pytest.raises(PolicyError, match=r"PG(.|\n)*SearchedPolicy"):
            RolloutWorker(Drift, PG, config={"seed": 0}).perform(request())

    def test_outputs_that_are_not_finite(self):
        worker = worker_of(num_envs_per_worker=3)
        worker.get_policy().set_weights({"head.kernel": np.full((3, 2), np.inf)})
        with pytest.raises(NonFiniteError, match=r"direction \d+ of generation 2"):
            worker.perform(request())
