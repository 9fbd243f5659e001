"""What Ape-X and parameter noise must learn (`make learning`)."""

from __future__ import annotations

from typing import Any

import pytest

from rollax import ApexDDPGTrainer, ApexDQNTrainer, DQNTrainer

pytestmark = pytest.mark.learning

WORKERS: dict[str, Any] = {
    "num_workers": 2,
    "num_cpus_per_worker": 0.5,
    "num_replay_shards": 2,
    "updates_per_draw": 16,
    "lr": 1e-3,
    "timesteps_per_iteration": 4000,
}


@pytest.mark.usefixtures("small_ray")
def test_apex_cartpole(reaches):
    config = {
        **WORKERS,
        "num_envs_per_worker": 8,
        "training_intensity": 0.1,
        "train_batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 1000,
        "target_network_update_freq": 200,
    }
    reaches(ApexDQNTrainer, "CartPole-v1", 450, 250_000, config)


@pytest.mark.usefixtures("small_ray")
def test_apex_ddpg_pendulum(reaches):
    config = {
        **WORKERS,
        "num_envs_per_worker": 4,
        "rollout_fragment_length": 25,
        "training_intensity": 0.2,
        "train_batch_size": 128,
        "buffer_size": 100_000,
        "learning_starts": 2000,
        "random_steps": 2000,
        "tau": 0.005,
        "gamma": 0.98,
        "model": {"fcnet_hiddens": (128, 128), "fcnet_activation": "relu"},
    }
    reaches(ApexDDPGTrainer, "Pendulum-v1", -250, 200_000, config)


def test_dqn_cartpole_with_parameter_noise(reaches):
    config = {
        "exploration": "ParameterNoise",
        "rollout_fragment_length": 64,
        "training_intensity": 0.5,
        "train_batch_size": 64,
        "lr": 2e-3,
        "prioritized_replay": True,
        "n_step": 3,
        "target_network_update_freq": 250,
        "timesteps_per_iteration": 1000,
    }
    reaches(DQNTrainer, "CartPole-v1", 450, 50_000, config)
