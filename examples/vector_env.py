"""A batched simulator steps all copies at once: 64 gliders, each with its own goal."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import PPOTrainer, VectorEnv

STEPS = 20


class Gliders(VectorEnv):
    """Each copy observes the signed distance to its goal and its velocity, and sets its acceleration.

    The reward is minus the distance. The sampler calls `reset_at` after the end of an episode.
    """

    def __init__(self, env_config: dict[str, Any]) -> None:
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        super().__init__(observation_space, gym.spaces.Box(-1.0, 1.0, (1,), np.float32), env_config["num_envs"])
        self.rng = np.random.default_rng()
        self.state = np.zeros((self.num_envs, 2), np.float32)  # distance to the goal, velocity
        self.steps = np.zeros(self.num_envs, np.int64)

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.state[index] = self.rng.uniform(-1.0, 1.0), 0.0
        self.steps[index] = 0
        return self.state[index].copy(), {}

    def vector_step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        self.state[:, 1] = 0.8 * self.state[:, 1] + 0.1 * np.asarray(actions, np.float32)[:, 0]
        self.state[:, 0] += self.state[:, 1]
        self.steps += 1
        over = self.steps == STEPS  # a time limit: truncated, not terminated
        return self.state.copy(), -np.abs(self.state[:, 0]), np.zeros_like(over), over, [{}] * self.num_envs


def main(iterations: int = 25) -> float:
    """Trains and returns the mean greedy reward of 64 episodes: about -10 for a glider that never moves."""
    config = {"env_config": {"num_envs": 64}, "train_batch_size": 2560, "lr": 1e-3, "gamma": 0.9, "seed": 0}
    with PPOTrainer(env=Gliders, config=config) as trainer:
        for iteration in range(iterations):
            result = trainer.train()
            if iteration % 5 == 0:
                print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean']:.2f}")
        return trainer.evaluate(num_episodes=64)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.2f}")
    assert reward >= -1.5
