"""A custom environment: a corridor whose length comes from `env_config`. The policy learns to walk to its end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import EnvContext, PPOTrainer


class Corridor(gym.Env):
    """Start at 0, reach the end: 0 is a step left, 1 a step right, and every step costs 0.1."""

    def __init__(self, env_config: EnvContext) -> None:
        self.length = env_config["length"]
        self.observation_space = gym.spaces.Box(0.0, self.length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = 0
        self.steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.steps += 1
        arrived = self.position >= self.length
        out_of_time = not arrived and self.steps >= 20 * self.length
        return self._observation(), 1.0 if arrived else -0.1, arrived, out_of_time, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.position], np.float32)


def main(iterations: int = 20, length: int = 10) -> float:
    """Trains and returns the mean length of greedy episodes; the optimum is `length`."""
    config: dict[str, Any] = {
        "env_config": {"length": length},
        "num_envs_per_worker": 4,
        "train_batch_size": 1000,
        "lr": 3e-4,
        "seed": 0,
    }
    with PPOTrainer(env=Corridor, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean episode length {result['episode_len_mean'] or 0:.1f}")
        return trainer.evaluate(num_episodes=5)["episode_len_mean"]


if __name__ == "__main__":
    steps = main()
    print(f"greedy episode length: {steps:.1f}")
    assert steps == 10
