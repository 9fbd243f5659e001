"""Four workers sample from a slow simulator that sometimes kills its process; the run continues."""

from __future__ import annotations

import os
import time

import gymnasium as gym
import numpy as np

from rollax import EnvContext, PPOTrainer

STEP_S = 0.003


class FrailReach(gym.Env):
    """A hand on a line moves to a target. A step takes three milliseconds; its cost is the remaining distance.

    The simulator leaks memory: after a few thousand steps its process is killed.
    """

    observation_space = gym.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, context: EnvContext) -> None:
        self.hand, self.target, self.steps = 0.0, 0.0, 0
        # Worker 0 is in the driver, which must survive; it only evaluates.
        self.left = 500 + 100 * context.worker_index if context.worker_index else np.inf

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.hand, self.target = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(STEP_S)
        self.left -= 1
        if self.left == 0:
            os._exit(1)
        self.hand = float(np.clip(self.hand + 0.2 * (action - 1), -2, 2))
        self.steps += 1
        return self._obs(), -abs(self.hand - self.target), False, self.steps == 20, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.hand, self.target], np.float32)


def main(iterations: int = 12) -> float:
    """Trains and returns the mean reward of 20 greedy episodes; a hand that never moves gets about -13."""
    config = {
        "num_workers": 4,
        "num_envs_per_worker": 2,
        "num_cpus_per_worker": 0.25,  # the workers sleep most of the time, so they share a core
        "train_batch_size": 1024,
        "lr": 3e-3,
        "gamma": 0.9,
        "seed": 0,
    }
    with PPOTrainer(env=FrailReach, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            steps, reward, health = result["timesteps_total"], result["episode_reward_mean"], result["info"]["workers"]
            pace = result["env_steps_per_s"]
            print(f"{steps:6,} steps  reward {reward:6.1f}  {pace:4.0f} steps/s  {health['restarts']} restarts so far")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"mean reward: {reward:.1f}, where one environment alone can do {1 / STEP_S:.0f} steps/s")
    assert reward >= -4.5
