"""SAC, TD3 and DDPG reach published scores within published budgets; `make learning` runs these."""

from __future__ import annotations

from typing import Any

import pytest

from rollax import DDPGTrainer, SACTrainer, TD3Trainer

pytestmark = pytest.mark.learning

# rl-baselines3-zoo, hyperparams/{sac,td3,ddpg}.yml, except that updates begin earlier, in groups of eight.
PENDULUM: dict[str, Any] = {
    "lr": 1e-3,
    "gamma": 0.98,
    "tau": 5e-3,
    "buffer_size": 200_000,
    "learning_starts": 1000,
    "random_steps": 1000,
    "train_batch_size": 256,
    "exploration": "GaussianNoise",
}

# The noise of MountainCarContinuous for TD3 and DDPG, hyperparams/{td3,ddpg}.yml: θ 0.15 and σ 0.5, with steps of 0.01.
SLOW_NOISE: dict[str, Any] = {
    "exploration": "OrnsteinUhlenbeckNoise",
    "noise_scale": 1.0,
    "ou_theta": 0.0015,
    "ou_sigma": 0.05,
}


def test_sac_pendulum(reaches):
    config = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}
    reaches(SACTrainer, "Pendulum-v1", -200, 10_000, config)


def test_td3_pendulum(reaches):
    reaches(TD3Trainer, "Pendulum-v1", -200, 20_000, PENDULUM)


def test_td3_inverted_pendulum(reaches):
    # Every step earns 1, so values rise from 0 to 1/(1 - γ) = 100. With one-step targets and the default τ of 0.005,
    # applied in every second update, they rise by at most 1 in 400 updates. RLlib's example states 10,000 to 20,000
    # steps; with its settings one seed had at most 77 by then, and 112 with TD3 of Stable-Baselines3.
    config = {
        "lr": 1e-3,
        "n_step": 3,
        "tau": 0.02,
        "learning_starts": 1000,
        "random_steps": 1000,
        "rollout_fragment_length": 32,
        "evaluation_num_episodes": 5,
        "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
    }
    reaches(TD3Trainer, "InvertedPendulum-v5", 950, 50_000, config)


def test_ddpg_pendulum(reaches):
    reaches(DDPGTrainer, "Pendulum-v1", -200, 20_000, PENDULUM)


def test_ddpg_mountain_car(reaches):
    # As in the zoo, but with small networks. With the faster noise of RLlib's example (θ 0.15, σ 0.3) one seed ended at
    # full force in every step, -99.9 an episode; one of Stable-Baselines3's DDPG did so too.
    config = {
        "lr": 1e-3,
        "tau": 5e-3,
        "learning_starts": 1000,
        "random_steps": 0,
        "train_batch_size": 128,
        "rollout_fragment_length": 32,
        **SLOW_NOISE,
        "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
    }
    reaches(DDPGTrainer, "MountainCarContinuous-v0", 90, 20_000, config)


def test_sac_mountain_car(reaches):
    # As in the zoo, with two differences. Instead of gSDE it has the noise of TD3 and DDPG there. And γ is not 0.9999,
    # at which the entropy of an endless episode, 0.1 × 0.7 a step, is worth more than the reward of 100 at the goal.
    config = {
        "gamma": 0.99,
        "tau": 0.01,
        "buffer_size": 50_000,
        "train_batch_size": 512,
        "initial_alpha": 0.1,
        "alpha_lr": 0.0,
        "learning_starts": 0,
        "random_steps": 0,
        "rollout_fragment_length": 32,
        **SLOW_NOISE,
        "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
    }
    reaches(SACTrainer, "MountainCarContinuous-v0", 90, 50_000, config)


def test_sac_cartpole(reaches):
    config = {
        "lr": 1e-3,
        "gamma": 0.98,
        "train_batch_size": 64,
        "training_intensity": 0.25,
        "rollout_fragment_length": 32,
        "target_entropy": 0.2,
        "initial_alpha": 0.1,
        "buffer_size": 50_000,
        "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
    }
    reaches(SACTrainer, "CartPole-v1", 195, 100_000, config)
