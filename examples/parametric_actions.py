"""Parametric actions: the available actions change at every step, and each is described by an embedding.

CartPole in which "left" and "right" are in two of ten slots, which change after every step. The other slots are empty;
choosing an empty slot raises an error.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import PPOTrainer

SLOTS = 10
EMBEDDINGS = np.array([[0.2, -0.7, 0.4, 0.9], [-0.5, 0.3, 0.8, -0.1]], np.float32)  # embeddings of left and right


class ParametricCartPole(gym.Env):
    """`avail_actions` holds the embedding of each slot, `action_mask` is 1 for each slot that is not empty."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.cartpole = gym.make("CartPole-v1")
        self.action_space = gym.spaces.Discrete(SLOTS)
        self.observation_space = gym.spaces.Dict(
            {
                "cart": self.cartpole.observation_space,
                "avail_actions": gym.spaces.Box(-1.0, 1.0, (SLOTS, EMBEDDINGS.shape[1]), np.float32),
                "action_mask": gym.spaces.MultiBinary(SLOTS),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        cart, _ = self.cartpole.reset(seed=seed)
        return self._observation(cart), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        if action not in self.places:
            raise ValueError(f"slot {action} is empty")
        cart, reward, terminated, truncated, _ = self.cartpole.step(self.places.index(action))
        return self._observation(cart), float(reward), terminated, truncated, {}

    def _observation(self, cart: np.ndarray) -> dict[str, np.ndarray]:
        self.places = self.np_random.choice(SLOTS, len(EMBEDDINGS), replace=False).tolist()
        avail_actions = np.zeros((SLOTS, EMBEDDINGS.shape[1]), np.float32)
        avail_actions[self.places] = EMBEDDINGS
        action_mask = np.zeros(SLOTS, np.int8)
        action_mask[self.places] = 1
        return {"cart": cart, "avail_actions": avail_actions, "action_mask": action_mask}


def main(iterations: int = 80) -> float:
    """Trains and returns the mean reward of 20 greedy episodes: about 20 by chance, at most 500."""
    config = {
        "num_envs_per_worker": 8,
        "train_batch_size": 512,
        "sgd_minibatch_size": 256,
        "lr": 1e-3,
        "gamma": 0.98,
        "lambda": 0.9,
        "seed": 0,
    }
    with PPOTrainer(env=ParametricCartPole, config=config) as trainer:
        for iteration in range(iterations):
            result = trainer.train()
            if iteration % 5 == 4:
                print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean']:.1f}")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.1f}")
    assert reward >= 400
