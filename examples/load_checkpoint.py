"""A policy from a checkpoint plays Pendulum-v1 from raw observations."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

from rollax import PPOTrainer, load_policy


def train(directory: str, iterations: int) -> Path:
    """Trains with filtered observations and returns the path of the checkpoint."""
    config = {
        "num_envs_per_worker": 8,
        "train_batch_size": 4096,
        "sgd_minibatch_size": 256,
        "lr": 1e-3,
        "gamma": 0.9,
        "observation_filter": "MeanStdFilter",
        "model": {"free_log_std": True},
        "seed": 0,
    }
    with PPOTrainer(env="Pendulum-v1", config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean'] or np.nan:.0f}")
        return trainer.save(directory)


def play(checkpoint: Path, episodes: int) -> float:
    """Plays with the policy, which includes observation filter and action scaling; returns the mean reward."""
    policy = load_policy(checkpoint)
    env = gym.make("Pendulum-v1")
    rewards = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.compute_single_action(obs))
            total, over = total + float(reward), terminated or truncated
        rewards.append(total)
    return float(np.mean(rewards))


def main(iterations: int = 60, episodes: int = 20) -> float:
    """Trains, saves, loads, plays and returns the mean reward of the loaded policy."""
    with tempfile.TemporaryDirectory() as directory:
        return play(train(directory, iterations), episodes)


if __name__ == "__main__":
    reward = main()
    print(f"mean reward of the loaded policy: {reward:.0f}")
    assert reward >= -250
