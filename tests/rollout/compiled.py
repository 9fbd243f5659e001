"""Workers whose fragments are compiled, and their fragments beside those of single steps."""

from typing import Any

import numpy as np
import pytest

from rollax import PPOConfig, RolloutWorker, SampleBatch
from rollax.algorithms.ppo import PPO
from rollax.core import trees
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.row_sampler import RowSampler
from tests.env.jax.worlds import JaxClock, by_name

MODEL = {"fcnet_hiddens": (4,)}
MEMORY = {**MODEL, "lstm_cell_size": 3, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
LSTM, GRU = {**MEMORY, "use_lstm": True}, {**MEMORY, "use_gru": True}
PAIR = {"policy": {"own": PPO, "other": PPO}, "mapping": lambda agent: "own" if agent == "a" else "other"}
TWO = {"multiagent": {"policies": {"ann": None, "bob": None}, "policy_mapping_fn": by_name}}


class Drawing:
    """A mapping that draws lots in each episode, or at each call."""

    def __init__(self):
        self.random, self.drawn = np.random.default_rng(0), {}

    def __call__(self, agent_id, episode):
        return self.drawn.setdefault((episode.episode_id, agent_id), self.alone(agent_id))

    def alone(self, agent_id):
        return ["own", "other"][self.random.integers(2)]


def make(env=JaxClock, policy=PPO, config=PPOConfig, mapping=None, record=True, **settings) -> RolloutWorker:
    settings = {"num_envs_per_worker": 3, "rollout_fragment_length": 9, "seed": 2, "model": MODEL, **settings}
    return RolloutWorker(env, policy, policy_mapping_fn=mapping, config=config(**settings), record=record)


def segments_of(batch) -> list:
    """The segments of a fragment in an order that does not depend on how trajectories are numbered."""

    def content(segment) -> list:
        return [np.round(leaf, 2).tolist() for leaf in trees.leaves(segment["obs"])]

    return sorted(batch.segments(), key=content)


def compare(**settings) -> None:
    """Over three fragments and one after a fresh start: rows, flags, what came after each segment, metrics, state."""
    compiled, stepped = make(**settings), make(**settings, sampler=RowSampler)
    assert type(compiled.sampler) is CompiledSampler
    agents = len(compiled.env.possible_agents or [""])
    numbers = set()  # of the episodes and trajectories: one of ours for each one of theirs
    ended: list[list] = [[], []]  # in the order of ends

    def take_metrics() -> None:
        for metrics, worker in zip(ended, (compiled, stepped), strict=True):
            metrics += map(numbers_of, worker.get_metrics())

    for fragment in range(4):
        if fragment == 3:
            take_metrics()
            compiled.restart_episodes()
            stepped.restart_episodes()
        ours, theirs = by_policy(compiled), by_policy(stepped)
        assert ours.keys() == theirs.keys()
        assert sum(map(len, ours.values())) == 27 * agents
        for policy_id, batch in ours.items():
            numbers |= compared(batch, theirs[policy_id])
    assert len(numbers) == len({(name, a) for name, a, _ in numbers}) == len({(name, b) for name, _, b in numbers}) > 6
    take_metrics()
    assert len(ended[0]) == len(ended[1]) > 3
    for mine, other in zip(*ended, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    for policy_id, mine in compiled.get_filters().items():
        for name, value in mine.items():
            other = stepped.get_filters()[policy_id][name]
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-5, err_msg=name)
    states = [worker.get_sampling_state() for worker in (compiled, stepped)]
    np.testing.assert_array_equal(*(state.pop("episodes_begun") for state in states))
    assert str(states[0]) == str(states[1])


def compared(batch: Any, other_batch: Any) -> set[tuple]:
    """Compares the segments of two batches; returns `(column, id, other id)` of their episodes and trajectories."""
    assert batch.keys() == other_batch.keys()
    numbers = set()
    for mine, other in zip(segments_of(batch), segments_of(other_batch), strict=True):
        for name in mine.keys() - {"eps_id", "trajectory_id"}:
            assert_equal(mine[name], other[name], name)
        assert mine.after.keys() == other.after.keys()
        for name in mine.after:
            assert_equal(mine.after[name], other.after[name], f"{name} after")
        for name in {"eps_id", "trajectory_id"} & mine.keys():
            numbers |= {(name, a, b) for a, b in zip(mine[name].tolist(), other[name].tolist(), strict=True)}
    return numbers


def by_policy(worker) -> dict:
    """A fragment of each policy."""
    batch = worker.sample()
    assert batch.env_steps == 27
    return {"default_policy": batch} if isinstance(batch, SampleBatch) else dict(batch.items())


def numbers_of(episode) -> tuple:
    rewards = sorted((policy_id, sorted(all_)) for policy_id, all_ in episode.policy_rewards.items())
    return episode.length, episode.env_index, episode.reward, *(one for _, all_ in rewards for one in all_)


def assert_equal(mine, other, name) -> None:
    for a, b in zip(trees.leaves(mine), trees.leaves(other), strict=True):
        assert a.dtype == b.dtype, name
        if a.dtype == object:
            assert a.tolist() == b.tolist(), name
            continue
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
