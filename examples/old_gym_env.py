"""An unchanged environment of the old Gym interface, `reset() -> obs` and `step() -> (obs, reward, done, info)`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import PPOTrainer, register_env


class OldCorridor:
    """Start at 0, reach the end within 40 steps: 0 is a step left, 1 a step right, and every step costs 0.1.

    `done` means terminated, unless `info` marks a time limit.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(0.0, length, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self) -> np.ndarray:
        self.position, self.steps = 0, 0
        return np.array([self.position], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.steps += 1
        arrived, too_late = self.position >= self.length, self.steps == 40
        info = {"TimeLimit.truncated": too_late and not arrived}
        return np.array([self.position], np.float32), 1.0 if arrived else -0.1, arrived or too_late, info


register_env("old-corridor", lambda context: OldCorridor(context["length"]))


def main(iterations: int = 10) -> float:
    """Trains and returns the mean length of 10 greedy episodes; the optimum is 8."""
    config = {"env_config": {"length": 8}, "num_envs_per_worker": 4, "train_batch_size": 1000, "lr": 1e-3, "seed": 0}
    with PPOTrainer(env="old-corridor", config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean length {result['episode_len_mean']}")
        return trainer.evaluate(num_episodes=10)["episode_len_mean"]


if __name__ == "__main__":
    length = main()
    print(f"greedy length: {length}")
    assert length == 8
