"""Workers and trainers with remote sub-environments."""

import numpy as np
import pytest

from rollax import PGTrainer, RolloutWorker, TrainerConfig
from rollax.algorithms.ppo import PPO, PPOConfig
from tests.env.always_zero import AlwaysZero
from tests.env.remote.fragile import DIE, END, GO_ON, Fragile
from tests.env.worlds import Clock, Party

LOCKSTEP = 1e9


def sampled(env, policies=PPO, mapping=None, **settings):
    """Samples two batches, and the metrics of their episodes."""
    config = PPOConfig(num_envs_per_worker=2, rollout_fragment_length=40, seed=3, **settings)
    worker = RolloutWorker(env, policies, policy_mapping_fn=mapping, config=config)
    batches = [worker.sample(), worker.sample()]
    worker.stop()
    return batches, worker.get_metrics()


def columns_of(batch) -> dict:
    """The columns of one policy, or of several."""
    parts = batch.policy_batches if hasattr(batch, "policy_batches") else {"default_policy": batch}
    return {(policy_id, key): part[key] for policy_id, part in parts.items() for key in part}


@pytest.mark.short("single")
@pytest.mark.parametrize(("env", "several"), [(Clock, False), (Party, True)], ids=["single", "two policies"])
def test_batches_in_lockstep_equal_those_of_one_process(small_ray, env, several):
    policies = {"first": (PPO, None, None, {}), "other": (PPO, None, None, {"gamma": 0.5})}
    mapping = _by_letter if several else None
    remote = {"remote_worker_envs": True, "remote_env_batch_wait_ms": LOCKSTEP}
    at_home, away = (sampled(env, policies if several else PPO, mapping, **settings) for settings in ({}, remote))
    for here, there in zip(at_home[0], away[0], strict=True):
        assert columns_of(here).keys() == columns_of(there).keys()
        for key, column in columns_of(here).items():
            np.testing.assert_array_equal(column, columns_of(there)[key], err_msg=str(key))
    assert at_home[1] == away[1]
    assert len(at_home[1]) > 10


def _by_letter(agent_id):
    return "first" if agent_id in "ab" else "other"


@pytest.mark.long
def test_without_waiting_a_trainer_learns_and_evaluates(small_ray):
    config = {
        "num_envs_per_worker": 2,
        "remote_worker_envs": True,
        "train_batch_size": 200,
        "evaluation_config": {"num_envs_per_worker": 1},
    }
    with PGTrainer(env="CartPole-v1", config=config) as trainer:
        result = trainer.train()
        assert result["timesteps_total"] >= 200
        assert result["episodes_this_iter"] > 2
        assert trainer.evaluate(num_episodes=2)["episodes"] == 2


class DiesOnce(Fragile):
    """Episodes of 4 steps; the first process of sub-environment 1 dies in its 6th."""

    def step(self, action):
        steps = self.event_log.count("step", self.index) + 1
        return super().step(DIE if (self.index, steps) == (1, 6) else END if self.count == 3 else GO_ON)


@pytest.mark.parametrize("wait_ms", [0, LOCKSTEP])
@pytest.mark.long
def test_lost_episodes_are_not_learned_from(small_ray, event_log, wait_ms):
    config = TrainerConfig(
        env_config={"event_log": event_log},
        num_envs_per_worker=2,
        rollout_fragment_length=8,
        batch_mode="complete_episodes",
        remote_worker_envs=True,
        remote_env_batch_wait_ms=wait_ms,
        seed=0,
    )
    worker = RolloutWorker(DiesOnce, AlwaysZero, config=config)
    while event_log.count("made") < 3:
        assert {*np.unique(worker.sample()["eps_id"], return_counts=True)[1].tolist()} == {4}
        assert {episode.length for episode in worker.get_metrics()} == {4}
    worker.stop()
