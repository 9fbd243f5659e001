"""Published scores within published budgets; `make learning` runs these. The fixture `reaches` checks the scores."""

from __future__ import annotations

import gymnasium as gym
import pytest

from rollax import A2CTrainer, A3CTrainer, APPOTrainer, IMPALATrainer, PGTrainer, PPOTrainer
from tests.algorithms.envs import MaskedCartPole

pytestmark = pytest.mark.learning


# rl-baselines3-zoo, hyperparams/ppo.yml
CARTPOLE = {
    "num_envs_per_worker": 8,
    "train_batch_size": 256,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 20,
    "lr_schedule": [[0, 1e-3], [100_000, 0.0]],
    "clip_param_schedule": [[0, 0.2], [100_000, 0.0]],
    "gamma": 0.98,
    "lambda": 0.8,
}

# As in the zoo, but without gSDE: the deviation is one trained vector, with new noise at every step.
PENDULUM = {
    "num_envs_per_worker": 4,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 10,
    "lr": 1e-3,
    "gamma": 0.9,
    "lambda": 0.95,
    "model": {"free_log_std": True},
}


def test_ppo_cartpole(reaches):
    reaches(PPOTrainer, "CartPole-v1", 475, 100_000, CARTPOLE)


def test_ppo_masked_cartpole(reaches):
    reaches(PPOTrainer, MaskedCartPole, 150, 100_000, CARTPOLE)


def test_ppo_pendulum(reaches):
    reaches(PPOTrainer, "Pendulum-v1", -250, 300_000, PENDULUM)


def test_ppo_acrobot(reaches):
    # As in the zoo, but without normalized rewards.
    config = {
        "num_envs_per_worker": 16,
        "train_batch_size": 4096,
        "sgd_minibatch_size": 64,
        "num_sgd_iter": 4,
        "lr": 3e-4,
        "gamma": 0.99,
        "lambda": 0.94,
        "observation_filter": "MeanStdFilter",
    }
    reaches(PPOTrainer, "Acrobot-v1", -100, 300_000, config)


def test_pg_cartpole(reaches):
    reaches(PGTrainer, "CartPole-v1", 195, 100_000, {"num_envs_per_worker": 8})


ITERATION = {"timesteps_per_iteration": 2000}


def test_a2c_cartpole(reaches):
    reaches(A2CTrainer, "CartPole-v1", 450, 200_000, {"num_envs_per_worker": 8})


def test_a2c_acrobot(reaches):
    # As in the zoo, but with Adam, and without normalized rewards.
    config = {
        "num_envs_per_worker": 16,
        "rollout_fragment_length": 5,
        "train_batch_size": 80,
        "lr": 7e-4,
        "entropy_coeff": 0.0,
        "observation_filter": "MeanStdFilter",
    }
    reaches(A2CTrainer, "Acrobot-v1", -83, 500_000, config)


def test_a3c_cartpole(reaches):
    reaches(A3CTrainer, "CartPole-v1", 450, 200_000, {"num_envs_per_worker": 4, **ITERATION})


# With workers the acting policy lags behind the learned one, which V-trace corrects.
WORKERS = {"num_workers": 2, "num_envs_per_worker": 10}


@pytest.mark.usefixtures("small_ray")
def test_a3c_cartpole_with_workers(reaches):
    reaches(
        A3CTrainer,
        "CartPole-v1",
        400,
        500_000,
        {**WORKERS, "num_envs_per_worker": 4, "timesteps_per_iteration": 10_000},
    )


@pytest.mark.usefixtures("small_ray")
def test_impala_cartpole_with_workers(reaches):
    reaches(IMPALATrainer, "CartPole-v1", 450, 1_000_000, WORKERS)


@pytest.mark.usefixtures("small_ray")
def test_impala_cartpole_with_workers_and_old_samples(reaches):
    config = {"replay_proportion": 1.0, "replay_buffer_num_slots": 100, "broadcast_interval": 5}
    reaches(IMPALATrainer, "CartPole-v1", 450, 1_000_000, {**WORKERS, **config})


@pytest.mark.usefixtures("small_ray")
def test_appo_cartpole_with_workers(reaches):
    reaches(APPOTrainer, "CartPole-v1", 475, 500_000, {**WORKERS, "num_sgd_iter": 6})


def test_impala_cartpole(reaches):
    reaches(IMPALATrainer, "CartPole-v1", 450, 300_000, {"num_envs_per_worker": 10, **ITERATION})


def pendulum_in_tenths(context):
    """Pendulum-v1 with a tenth of its rewards: values of -60 are far from the network's first ones."""
    return gym.wrappers.TransformReward(gym.make("Pendulum-v1"), lambda reward: reward / 10)


def test_impala_pendulum(reaches):
    config = {
        "num_envs_per_worker": 8,
        "rollout_fragment_length": 128,
        "train_batch_size": 1024,
        "num_sgd_iter": 10,
        "lr": 1e-3,
        "gamma": 0.9,
        "lambda": 0.95,
        "entropy_coeff": 0.0,
        "observation_filter": "MeanStdFilter",
        "model": {"free_log_std": True},
        **ITERATION,
    }
    reaches(IMPALATrainer, pendulum_in_tenths, -700, 500_000, config, lambda found: 10 * found["episode_reward_mean"])


def test_appo_cartpole(reaches):
    config = {"num_envs_per_worker": 10, "num_sgd_iter": 6, **ITERATION}
    reaches(APPOTrainer, "CartPole-v1", 475, 200_000, config)


def test_appo_pendulum(reaches):
    config = {
        "num_envs_per_worker": 16,
        "rollout_fragment_length": 100,
        "train_batch_size": 1600,
        "num_sgd_iter": 10,
        "lr": 1e-3,
        "gamma": 0.9,
        "lambda": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.0,
        "grad_clip": 0.5,
        "model": {"free_log_std": True},
        **ITERATION,
    }
    reaches(APPOTrainer, "Pendulum-v1", -300, 500_000, config)
