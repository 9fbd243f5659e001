"""Pong from pixels, which takes an hour: `make learning` runs it, with one seed."""

from typing import Any

import pytest

from rollax import RainbowTrainer

pytestmark = pytest.mark.learning

# Rainbow's settings, except for those that two cores require: smaller images and convolutions, larger step sizes, a
# smaller buffer, a target network that is updated more often.
PONG: dict[str, Any] = {
    "env_config": {"screen_size": 42, "repeat_action_probability": 0.0},
    "num_envs_per_worker": 8,
    "rollout_fragment_length": 4,
    "timesteps_per_iteration": 4000,
    "clip_rewards": True,
    "frame_stack_axis": 0,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "training_intensity": 0.25,
    "train_batch_size": 32,
    "lr": 2.5e-4,
    "target_network_update_freq": 500,
    "evaluation_num_episodes": 8,
    "model": {"conv_filters": [[16, 4, 2], [32, 4, 2]], "conv_dense": 256},
}


def test_rainbow_pong(reaches):
    reaches(RainbowTrainer, "ALE/Pong-v5", 10, 900_000, PONG, seeds=(0,))
