"""`SyncSamplesOptimizer` over workers that are given: gather, learn, count."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from rollax import MultiAgentBatch, RolloutWorker, SampleBatch, SyncSamplesOptimizer
from rollax.algorithms.ppo import PPOPolicy
from rollax.errors import PolicyError
from rollax.policy.policy import Policy


class Notes(Policy):
    """Learns nothing, but says how much it got."""

    def compute_actions(self, obs_batch):
        return np.zeros(len(obs_batch), np.int64), [], {}

    def learn_on_batch(self, batch):
        return {"rows": batch.count, "first": int(batch["obs"][0])}


class FakeWorker(RolloutWorker):
    """Fragments of 10 env steps, with a row of each of `agents` for every step."""

    def __init__(self, **agents):
        self.agents = agents
        self.policies = {name: Notes(Discrete(100), Discrete(2)) for name in agents}
        self.fragments = 0

    def sample(self):
        self.fragments += 1
        rows = {
            name: SampleBatch({"obs": np.full(10 * count, self.fragments)})
            for name, count in self.agents.items()
            if count
        }
        if len(self.agents) == 1:
            (batch,) = rows.values()
            return SampleBatch(batch.to_dict(), env_steps=10)
        return MultiAgentBatch(rows, 10)


def make(worker, **settings):
    return SyncSamplesOptimizer(worker, **settings)


def test_gathers_until_the_batch_is_full():
    optimizer = make(FakeWorker(a=1), train_batch_size=25)
    assert optimizer.step() == {"a": {"rows": 30, "first": 1}}
    assert optimizer.step() == {"a": {"rows": 30, "first": 4}}
    assert (optimizer.env_steps, optimizer.agent_steps, optimizer.steps) == (60, 60, 60)
    assert all(seconds >= 0 for seconds in optimizer.timers.values())


@pytest.mark.parametrize(("unit", "fragments"), [("env_steps", 3), ("agent_steps", 1)])
def test_counts_env_or_agent_steps(unit, fragments):
    optimizer = make(FakeWorker(a=1, b=2), train_batch_size=30, count_steps_by=unit)
    assert optimizer.step() == {"a": {"rows": 10 * fragments, "first": 1}, "b": {"rows": 20 * fragments, "first": 1}}
    assert (optimizer.env_steps, optimizer.agent_steps) == (10 * fragments, 30 * fragments)
    assert optimizer.steps == 30


def test_only_those_to_train_and_only_with_data():
    worker = FakeWorker(a=1, b=1, c=1)
    optimizer = make(worker, train_batch_size=10, policies_to_train=["a", "c"])
    assert optimizer.step() == {"a": {"rows": 10, "first": 1}, "c": {"rows": 10, "first": 1}}
    worker.agents["c"] = 0
    assert optimizer.step() == {"a": {"rows": 10, "first": 2}, "c": {"rows": None, "first": None}}


def test_a_policy_that_cannot_learn_says_so():
    worker = FakeWorker(a=1)
    worker.policies["a"].learn_on_batch = super(Notes, worker.policies["a"]).learn_on_batch
    with pytest.raises(PolicyError, match=r"not implement learn_on_batch(.|\n)*policies_to_train"):
        make(worker).step()


def test_learns_with_a_real_worker():
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 16, "sgd_minibatch_size": 32, "seed": 0}
    worker = RolloutWorker("CartPole-v1", PPOPolicy, config={**config, "model": {"fcnet_hiddens": (8,)}})
    before = worker.get_weights()["default_policy"]
    stats = make(worker, train_batch_size=64).step()
    assert set(stats) == {"default_policy"}
    assert not np.array_equal(
        before["policy_head.kernel"], worker.get_weights()["default_policy"]["policy_head.kernel"]
    )
    worker.stop()
