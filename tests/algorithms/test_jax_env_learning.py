"""What is learned in environments in JAX: the scores of the same tasks in Gymnasium, with the same settings."""

from __future__ import annotations

import pytest

from rollax import DQNTrainer, PPOTrainer, SACTrainer
from tests.algorithms.test_dqn_learning import ZOO_CARTPOLE
from tests.algorithms.test_learning_runs import CARTPOLE

pytestmark = pytest.mark.learning


def test_ppo_jax_cartpole(reaches):
    reaches(PPOTrainer, "jax:CartPole-v1", 475, 100_000, CARTPOLE)


def test_ppo_jax_pendulum(reaches):
    # As in Gymnasium, but that observations are standardized.
    config = {
        "num_envs_per_worker": 4,
        "train_batch_size": 4096,
        "sgd_minibatch_size": 64,
        "num_sgd_iter": 10,
        "lr": 1e-3,
        "gamma": 0.9,
        "lambda": 0.95,
        "observation_filter": "MeanStdFilter",
        "model": {"free_log_std": True},
    }
    reaches(PPOTrainer, "jax:Pendulum-v1", -250, 300_000, config)


def test_dqn_jax_cartpole(reaches):
    reaches(DQNTrainer, "jax:CartPole-v1", 475, 50_000, ZOO_CARTPOLE)


def test_sac_jax_pendulum(reaches):
    config = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}
    reaches(SACTrainer, "jax:Pendulum-v1", -200, 10_000, config)
