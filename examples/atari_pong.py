"""Pong from pixels: a few iterations of PPO on ale-py's native vector env, compared with single environments.

Winning Pong takes nearly a million steps, an hour on one core with Rainbow (docs/atari-and-video.md). This example
shows the setup and the speed, and that the native env and the single env return identical images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax import BaseEnv, EnvContext, PPOTrainer
from rollax.env.making import make_base_env
from rollax.env.registry import env_creator

GAME = "ALE/Pong-v5"
ENV_CONFIG = {"screen_size": 42, "stack": 2, "noop_max": 0, "repeat_action_probability": 0.0}


def pictures(env: BaseEnv, steps: int) -> list[np.ndarray]:
    """Returns the images of the first sub-environment under random actions."""
    random, shown = np.random.default_rng(0), []
    rows = env.reset_rows(np.arange(1), [1])
    assert rows is not None
    for _ in range(steps):
        shown.append(rows.observations(None, env.observation_space)[0].copy())
        env.send_rows(rows, None, random.integers(6, size=1))
        rows = env.poll_rows()
    env.stop()
    return shown


def main(iterations: int = 15) -> float:
    """Trains briefly and returns the share of images that are equal in the native and the single env."""
    config: dict[str, Any] = {
        "env_config": ENV_CONFIG,
        "num_envs_per_worker": 16,
        "train_batch_size": 1024,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 3,
        "lr": 1e-3,
        "clip_param": 0.1,
        "entropy_coeff": 0.01,
        "clip_rewards": True,
        "model": {"vf_share_layers": True, "conv_filters": [[8, 6, 3], [16, 4, 2]], "conv_dense": 128},
        "seed": 0,
    }
    with PPOTrainer(env=GAME, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:6,} steps  {result['env_steps_per_s']:5.0f} a second")
    both = [
        pictures(make_base_env(env_creator(GAME), EnvContext({**ENV_CONFIG, "native_vector": native}), 1), 300)
        for native in (True, False)
    ]
    return float(np.mean([np.array_equal(one, other) for one, other in zip(*both, strict=True)]))


if __name__ == "__main__":
    share = main()
    print(f"{share:.0%} of the images are equal in the native and the single env")
    assert share == 1
