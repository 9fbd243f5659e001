"""CartPole without velocities: an LSTM infers them from the positions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import PPOTrainer


class StatelessCartPole(gym.ObservationWrapper):
    """CartPole-v1 whose observation has the cart's position and the pole's angle, but no velocities."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(gym.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


CONFIG = {
    "num_envs_per_worker": 16,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 10,
    "lr_schedule": [[0, 1e-3], [120_000, 0.0]],
    "gamma": 0.99,
    "lambda": 0.95,
    "observation_filter": "MeanStdFilter",  # angles are a few hundredths
    "model": {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 32, "fcnet_hiddens": [64]},
}


def main(iterations: int = 58) -> float:
    """Trains and returns the mean reward of 20 greedy episodes: at most 500."""
    with PPOTrainer(env=StatelessCartPole, config={**CONFIG, "seed": 0}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean'] or 0:5.1f}")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.1f}")
    assert reward >= 450
