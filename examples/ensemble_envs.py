"""One policy for an ensemble: each copy of CartPole has its own gravity, chosen by `vector_index`."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from rollax import EnvContext, PPOTrainer

GRAVITIES = (2.0, 5.0, 9.8, 15.0, 20.0, 25.0, 30.0, 35.0)


def make_cartpole(context: EnvContext) -> gym.Env:
    """CartPole with the gravity of a planet, which the policy does not observe."""
    env = gym.make("CartPole-v1", max_episode_steps=200)
    env.unwrapped.gravity = context["gravities"][context.vector_index]  # type: ignore[attr-defined]
    return env


def main(iterations: int = 20) -> float:
    """Trains on all planets together and returns the lowest mean greedy reward of a planet: at most 200."""
    config = {
        "env_config": {"gravities": GRAVITIES},
        "num_envs_per_worker": len(GRAVITIES),
        "train_batch_size": 2048,
        "lr": 1e-3,
        "num_sgd_iter": 10,
        "lambda": 0.95,
        "seed": 0,
    }
    with PPOTrainer(env=make_cartpole, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean']:5.1f}")
        # The sampling worker has one copy per planet: five greedy episodes of each.
        trainer.worker.sampler.explore = False
        episodes = trainer.worker.evaluate(5 * len(GRAVITIES))
    rewards = [
        float(np.mean([episode.reward for episode in episodes if episode.env_index == index]))
        for index in range(len(GRAVITIES))
    ]
    for gravity, reward in zip(GRAVITIES, rewards, strict=True):
        print(f"gravity {gravity:4.1f}: {reward:5.1f}")
    return min(rewards)


if __name__ == "__main__":
    worst = main()
    print(f"worst planet: {worst:.1f}")
    assert worst >= 150
