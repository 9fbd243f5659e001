"""Scores of ARS and ES within published budgets; `make learning` runs these.

A search succeeds with some seeds and fails with others (70 % of 100 seeds in the paper of ARS). Some tests therefore
check the median over three seeds, with the fixture `median_reaches`.
"""

import numpy as np
import pytest

from rollax import ARSTrainer, ESTrainer
from tests.algorithms.envs import MaskedCartPole

pytestmark = pytest.mark.learning

RAW = {"observation_filter": "NoFilter"}
OF_PAPER = {"shared_starts": False}
# rl-baselines3-zoo, hyperparams/ars.yml
CARTPOLE = {**RAW, "num_directions": 8, "lr": 0.02, "noise_stdev": 0.05, "num_envs_per_worker": 16}


@pytest.fixture
def median_reaches(learning_run):
    """Trains with each seed and checks the median of the best evaluations."""

    def check(trainer_class, env, target, budget, config) -> None:
        curves = learning_run(trainer_class, env, target, budget, config).curves
        assert np.median([max(score for _, score in curve) for curve in curves]) >= target

    return check


def test_ars_cartpole(reaches):
    reaches(ARSTrainer, "CartPole-v1", 500, 50_000, CARTPOLE)


def test_ars_masked_cartpole(reaches):
    reaches(ARSTrainer, MaskedCartPole, 150, 100_000, CARTPOLE)


def test_ars_mountain_car_continuous(reaches):
    reaches(ARSTrainer, "MountainCarContinuous-v0", 90, 500_000, MOUNTAIN_CAR)


MOUNTAIN_CAR = {"num_directions": 16, "lr": 0.02, "noise_stdev": 0.05, "num_envs_per_worker": 32}


def test_ars_pendulum(reaches):
    # With rectifiers, as in RL Zoo: with tanh most seeds stay below -500. The step sizes of RL Zoo (N = 4, b = 1,
    # ν = 0.1, lr = 0.018) reach the target with some seeds only.
    config = {
        **RAW,
        "num_directions": 8,
        "directions_used": 4,
        "lr": 0.1,
        "noise_stdev": 0.3,
        "model": {"fcnet_hiddens": (16,), "fcnet_activation": "relu"},
        "num_envs_per_worker": 16,
    }
    reaches(ARSTrainer, "Pendulum-v1", -250, 2_000_000, config)


def test_ars_swimmer(median_reaches):
    # V1 of the paper, appendix A. 242 is the mean of eight runs of sb3-contrib on v3; on v5 see docs/algorithms.md.
    config = {**RAW, "num_directions": 1, "lr": 0.02, "noise_stdev": 0.01, "num_envs_per_worker": 2, **OF_PAPER}
    median_reaches(ARSTrainer, "Swimmer-v5", 240, 2_000_000, config)


def test_ars_half_cheetah(median_reaches):
    # V2-t of the paper, appendix A; its target is 3430.
    config = {"num_directions": 32, "directions_used": 4, "lr": 0.02, "noise_stdev": 0.03, "num_envs_per_worker": 64}
    config |= OF_PAPER
    median_reaches(ARSTrainer, "HalfCheetah-v5", 3430, 12_000_000, config)


def test_es_cartpole(reaches):
    config = {"num_directions": 25, "num_envs_per_worker": 50, "lr": 0.02, "noise_stdev": 0.05}
    reaches(ESTrainer, "CartPole-v1", 475, 500_000, config)


def test_es_inverted_pendulum(reaches):
    config = {"num_directions": 25, "num_envs_per_worker": 50, "lr": 0.02, "noise_stdev": 0.05}
    reaches(ESTrainer, "InvertedPendulum-v5", 950, 1_000_000, config)
