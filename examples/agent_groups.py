"""An agent group: each agent must name the digit that only the other observes; the group observes both."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import EnvContext, MultiAgentEnv, PPOTrainer

DIGITS = gym.spaces.Discrete(4)
ROUNDS = 20


class CrossedDigits(MultiAgentEnv):
    """Each agent observes a digit and gets the reward 1 if it names the digit of the other. Twenty rounds."""

    observation_space = DIGITS
    action_space = DIGITS
    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.round = 0
        return self._draw(), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        rewards = {
            "left": float(actions["left"] == self.digits["right"]),
            "right": float(actions["right"] == self.digits["left"]),
        }
        self.round += 1
        return self._draw(), rewards, {"__all__": self.round == ROUNDS}, {"__all__": False}, {}

    def _draw(self) -> dict[str, int]:
        self.digits = {agent: int(self.rng.integers(DIGITS.n)) for agent in ("left", "right")}
        return dict(self.digits)


def make_env(context: EnvContext) -> Any:
    """The observations and actions of the group "both" are Tuples of those of its agents; its reward is their sum."""
    return CrossedDigits().with_agent_groups({"both": ["left", "right"]})


def main(iterations: int = 25) -> float:
    """Trains and returns the share of named digits in 20 greedy episodes; a single agent reaches 1/4 by chance."""
    config = {
        "num_envs_per_worker": 8,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 256,
        "lr": 1e-3,
        "gamma": 0.0,  # rounds are independent
        "seed": 0,
    }
    with PPOTrainer(env=make_env, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  reward {result['episode_reward_mean']:5.2f}")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"] / (2 * ROUNDS)


if __name__ == "__main__":
    named = main()
    print(f"digits named: {named:.0%}")
    assert named >= 0.95
