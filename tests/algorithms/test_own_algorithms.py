"""Algorithms outside of the library, each in one short file, learn and are restored like built-in ones."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, PGTrainer, SyncReplayOptimizer, load_policy
from rollax.config.groups import StateValueFields
from tests.algorithms import own_awr, own_qr_dqn
from tests.algorithms.envs import Echo
from tests.algorithms.own_awr import AWRTrainer
from tests.algorithms.own_qr_dqn import QRDQNTrainer, quantile_huber

SMALL = {"model": {"fcnet_hiddens": (16,)}, "num_envs_per_worker": 4, "lr": 0.01, "gamma": 0.0, "seed": 0}
OF = {
    AWRTrainer: {"train_batch_size": 256, "rollout_fragment_length": 64},
    QRDQNTrainer: {"learning_starts": 100, "training_intensity": 1.0, "prioritized_replay": True, "double_q": False},
}


@pytest.mark.parametrize(("module", "lines"), [(own_awr, 60), (own_qr_dqn, 120)])
def test_files_are_short(module, lines):
    assert len(Path(module.__file__).read_text(encoding="utf-8").splitlines()) <= lines


@pytest.mark.long
@pytest.mark.parametrize("trainer_class", OF, ids=lambda found: found.name)
def test_learn_and_are_restored(trainer_class, tmp_path):
    config = {**SMALL, **OF[trainer_class], "timesteps_per_iteration": 600, "env_config": {"space": spaces.Discrete(3)}}
    with trainer_class(Echo, config) as trainer:
        for _ in range(3):
            statistics = trainer.train()["info"]["learner"]["default_policy"]
        assert all(np.isfinite(value) for value in statistics.values())
        assert trainer.evaluate(num_episodes=20)["episode_reward_mean"] > 9
        policy = load_policy(trainer.save(tmp_path), trainer_class=trainer_class)
    assert [policy.compute_single_action(seen) for seen in range(3)] == [0, 1, 2]


def test_the_quantile_loss():
    # τ = ¼, ¾ and u = 1 - (0, 2) = (1, -1): (|¼ - 0| + |¾ - 1|) ½ = ¼.  For the target 5: u = (5, 3), huber 4.5, 2.5:
    # ¼ 4.5 + ¾ 2.5 = 3.  The mean over both targets: (¼ + 3) / 2.
    loss = quantile_huber(jnp.array([[0.0, 2.0]]), jnp.array([[1.0, 5.0]]))
    np.testing.assert_allclose(loss, [1.625], rtol=1e-6)


def test_a_config_without_the_keys_of_the_optimizer():
    class Replayed(PGTrainer):
        optimizer_class = SyncReplayOptimizer

    with pytest.raises(ConfigError, match=r"lacks keys of its optimizer(.|\n)*PGConfig(.|\n)*buffer_size"):
        Replayed("CartPole-v1")


def test_a_config_without_the_common_keys():
    class Unfinished(PGTrainer):
        config_class: Any = StateValueFields  # a group of keys alone

    with pytest.raises(ConfigError, match=r"common keys(.|\n)*Unfinished(.|\n)*StateValueFields, TrainerConfig"):
        Unfinished(env=Echo)
