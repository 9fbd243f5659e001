"""Fragments, metrics and states of `BlockSampler` are those of `RowSampler`, bit for bit."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollax import Callbacks, NonFiniteError, RolloutWorker, VectorEnv
from rollax.algorithms.dqn import DQN, DQNConfig
from rollax.algorithms.ppo import PPO
from rollax.core import trees
from rollax.rollout.block_sampler import BlockSampler
from rollax.rollout.row_sampler import RowSampler
from tests.env.refused import refused
from tests.rollout.compiled import LSTM, MODEL
from tests.rollout.worlds import Encode, Line, Scripted, action_for, native_lines


def cartpoles(_) -> gym.vector.VectorEnv:
    return gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")


class Losing(VectorEnv):
    """Two counters, one of which is lost at every seventh step."""

    def __init__(self, _=None):
        super().__init__(Line.observation_space, Line.action_space, 2)
        self.counts, self.steps = np.zeros(2), 0

    def obs(self, index):
        return np.array([index, self.counts[index], 1, 1], np.float32)

    def reset_at(self, index, seed=None, options=None):
        self.counts[index] = 0
        return self.obs(index), {}

    def vector_step(self, actions):
        self.steps += 1
        self.lost = [self.steps // 7 % 2] if self.steps % 7 == 0 else []
        self.counts += 1
        left = [index for index in range(2) if index not in self.lost]
        ends = [bool(self.counts[index] % 5 == 0) for index in left]
        return [self.obs(index) for index in left], [1.0] * len(left), ends, [False] * len(left), [{}] * len(left)


CASES = {
    "copies": ("CartPole-v1", PPO, {"model": MODEL}),
    "one": (Line, PPO, {"model": MODEL, "num_envs_per_worker": 1}),
    "actions of floats": ("Pendulum-v1", PPO, {"model": MODEL, "clip_rewards": 1.0}),
    "filter": ("CartPole-v1", PPO, {"model": MODEL, "observation_filter": "MeanStdFilter"}),
    "memory": ("CartPole-v1", PPO, {"model": LSTM, "observation_filter": "MeanStdFilter"}),
    "greedy": ("CartPole-v1", PPO, {"model": MODEL, "explore": False}),
    "large": ("CartPole-v1", PPO, {"model": {"fcnet_hiddens": (256, 200)}}),  # its parameters are not joined
    "replay": ("CartPole-v1", DQN, {"config": DQNConfig, "model": MODEL}),
    "every column": (Line, Encode, {}),
    "next step": (cartpoles, PPO, {"model": MODEL, "observation_filter": "MeanStdFilter"}),
    "next step, memory": (cartpoles, PPO, {"model": LSTM}),
    "next step, one": (native_lines(AutoresetMode.NEXT_STEP, 1), Encode, {}),
    "same step": (native_lines(AutoresetMode.SAME_STEP), PPO, {"model": MODEL}),
    "disabled": (native_lines(AutoresetMode.DISABLED), PPO, {"model": MODEL}),
}


def make(env, policy=Encode, config=dict, **settings) -> RolloutWorker:
    settings = {"seed": 3, "num_envs_per_worker": 3, "rollout_fragment_length": 13, **settings}
    return RolloutWorker(env, policy, config=config(**settings))


def assert_equal(ours: trees.Tree, theirs: trees.Tree, name: str) -> None:
    for one, other in zip(trees.leaves(ours), trees.leaves(theirs), strict=True):
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.short("one", "greedy", "every column", "next step, memory")
@pytest.mark.parametrize(("env", "policy", "settings"), CASES.values(), ids=CASES.keys())
def test_fragments_metrics_and_states(env, policy, settings):
    blocks, rows = make(env, policy, **settings), make(env, policy, **settings, sampler=RowSampler)
    assert type(blocks.sampler) is BlockSampler
    for fragment in range(4):
        ours, theirs = blocks.sample(), rows.sample()
        assert list(ours) == list(theirs)
        assert ours.env_steps == theirs.env_steps
        assert_equal(ours.ends, theirs.ends, "ends")
        for name in theirs:
            if name == "action_logp" and env == "Pendulum-v1":
                # Compiled without optimization, as in tests, densities of packed actions are rounded differently.
                np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5)
            else:
                assert_equal(ours[name], theirs[name], name)
        for name in theirs.after:
            assert_equal(ours.after[name], theirs.after[name], f"after: {name}")
        assert blocks.get_metrics() == rows.get_metrics()
        if fragment == 1:
            assert blocks.evaluate(4) == rows.evaluate(4)
        # Worker states contain generator states, numbers of episodes and statistics of filters.
        state, expected = blocks.get_state(), rows.get_state()
        assert str(state["sampling"]) == str(expected["sampling"])
        assert_equal(state["filters"], expected["filters"], "filters")


def test_a_block_of_one_poll_begins_with_a_reset():
    """Without a seed, an environment whose episodes have all ended begins the next ones in the first poll."""
    env = native_lines(AutoresetMode.NEXT_STEP, 1)
    blocks, rows = (make(env, seed=None, rollout_fragment_length=1, sampler=it) for it in (None, RowSampler))
    assert blocks.evaluate(1) == rows.evaluate(1)
    ours, theirs = blocks.sample(), rows.sample()
    for name in theirs:
        assert_equal(ours[name], theirs[name], name)


def test_rows_of_lost_episodes_are_dropped():
    worker = make(Losing)
    assert type(worker.sampler) is BlockSampler
    for _ in range(6):
        batch = worker.sample()
        assert len(batch) == batch.env_steps >= 26
        assert batch["actions"].tolist() == action_for(batch["obs"]).tolist()
        for segment in batch.segments():
            # Counts go on inside a segment, and after it unless the episode was lost at the next step.
            steps = np.arange(len(segment)) + segment["obs"][0, 1]
            assert segment["obs"][:, 1].tolist() == steps.tolist() == segment["t"].tolist()
            assert segment.after["obs"][0, 1] == steps[-1] + 1
            assert segment["terminateds"].tolist() == ((steps + 1) % 5 == 0).tolist()
            assert len(set(segment["eps_id"])) == 1
    assert all(metrics.length % 5 == 0 and metrics.reward == metrics.length for metrics in worker.get_metrics())


def test_outputs_that_are_not_finite_are_refused():
    worker = make("CartPole-v1", PPO, model=MODEL)
    policy = worker.get_policy()
    policy.set_weights({name: np.full_like(value, np.nan) for name, value in policy.get_weights().items()})
    refused(NonFiniteError, worker.sample, says="default_policy")


def test_new_weights_are_used():
    blocks, rows = (make("CartPole-v1", PPO, model=MODEL, sampler=it) for it in (None, RowSampler))
    for scale in (1.0, 2.0):
        for worker in (blocks, rows):
            policy = worker.get_policy()
            policy.set_weights({name: value * scale for name, value in policy.get_weights().items()})
        assert_equal(blocks.sample()["action_logp"], rows.sample()["action_logp"], str(scale))


class Ends(Callbacks):
    def on_episode_end(self, *, worker, base_env, episode):
        pass


class ByTrajectory(Encode):
    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        return sample_batch


class ReadsInfos(Encode):
    def compute_actions(self, obs_batch, info_batch):  # type: ignore[override]
        return action_for(obs_batch), [], {}


BY_ROWS = {
    "callbacks": (Line, Encode, {"callbacks": Ends}),
    "complete episodes": (Line, Encode, {"batch_mode": "complete_episodes"}),
    "postprocess_trajectory": (Line, ByTrajectory, {}),
    "infos": (Line, ReadsInfos, {}),
    "agents": (lambda _: Scripted([[{"a": "o"}, {"a": "or"}, {"a": "orT", "__all__": "T"}]], 0), Encode, {}),
}


@pytest.mark.parametrize(("env", "policy", "settings"), BY_ROWS.values(), ids=BY_ROWS.keys())
def test_what_is_sampled_by_rows(env, policy, settings):
    worker = make(env, policy, **settings)
    assert type(worker.sampler) is RowSampler
    assert worker.sample().env_steps >= 39


def test_outputs_of_sub_environments_that_rest_are_not_read(monkeypatch):
    empty = np.empty

    def poisoned(shape, dtype=float, **others):
        array = empty(shape, dtype, **others)
        if array.dtype.kind in "if" and array.size:
            array.reshape(-1).view(np.uint8)[:] = 255  # NaN as a float
        return array

    worker = make("CartPole-v1", PPO, model=MODEL, num_envs_per_worker=8)
    monkeypatch.setattr(np, "empty", poisoned)
    assert len(worker.evaluate(5)) == 5
