"""What is learned in environments in JAX: the scores of the same tasks in Gymnasium, with the same settings."""

from __future__ import annotations

import pytest

from rollax import ARSTrainer, DQNTrainer, PPOTrainer, SACTrainer
from tests.algorithms.test_dqn_learning import ZOO_CARTPOLE
from tests.algorithms.test_learning_runs import CARTPOLE, PENDULUM
from tests.algorithms.test_search_learning import CARTPOLE as ARS_CARTPOLE
from tests.algorithms.test_search_learning import PENDULUM as ARS_PENDULUM

pytestmark = pytest.mark.learning


def test_ppo_jax_cartpole(reaches):
    reaches(PPOTrainer, "jax:CartPole-v1", 475, 100_000, CARTPOLE)


def test_ppo_jax_pendulum(reaches):
    reaches(PPOTrainer, "jax:Pendulum-v1", -250, 300_000, {**PENDULUM, "observation_filter": "MeanStdFilter"})


def test_dqn_jax_cartpole(reaches):
    reaches(DQNTrainer, "jax:CartPole-v1", 475, 50_000, ZOO_CARTPOLE)


def test_sac_jax_pendulum(reaches):
    config = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}
    reaches(SACTrainer, "jax:Pendulum-v1", -200, 10_000, config)


def test_ars_jax_cartpole(reaches):
    reaches(ARSTrainer, "jax:CartPole-v1", 500, 50_000, ARS_CARTPOLE)


def test_ars_jax_pendulum(reaches):
    reaches(ARSTrainer, "jax:Pendulum-v1", -250, 2_000_000, ARS_PENDULUM)
