"""Two policies that take turns: a speaker and a listener with a shared reward learn a common language."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import MultiAgentEnv, PolicySpec, PPOTrainer

SYMBOLS = gym.spaces.Discrete(2)


class Signals(MultiAgentEnv):
    """The speaker observes a target and chooses a symbol; the listener observes the symbol and chooses a target."""

    observation_space = SYMBOLS
    action_space = SYMBOLS
    possible_agents = ("speaker", "listener")

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.round = 0
        return self._next_target(), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        going_on = {"__all__": False}
        if "speaker" in actions:
            return {"listener": actions["speaker"]}, {}, going_on, going_on, {}
        understood = float(actions["listener"] == self.target)
        self.round += 1
        # The speaker's reward arrives one step after its action and is added to that action's row.
        rewards = {"speaker": understood, "listener": understood}
        return self._next_target(), rewards, {"__all__": self.round == 20}, going_on, {}

    def _next_target(self) -> dict[str, int]:
        self.target = int(self.rng.integers(SYMBOLS.n))
        return {"speaker": self.target}


def main(iterations: int = 15) -> float:
    """Trains and returns the share of correct targets in 20 greedy episodes: 0.5 by chance."""
    config = {
        "multiagent": {
            # Spaces may be left out if the environment defines them for all agents.
            "policies": {
                "speaker": PolicySpec(config={"entropy_coeff": 0.01}),
                "listener": PolicySpec(observation_space=SYMBOLS, action_space=SYMBOLS),
            },
            "policy_mapping_fn": lambda agent_id: agent_id,
        },
        "num_envs_per_worker": 8,
        "train_batch_size": 2048,
        "lr": 1e-3,
        "gamma": 0.0,  # rounds are independent
        "seed": 0,
    }
    with PPOTrainer(env=Signals, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            by_policy = {name: round(reward or 0, 1) for name, reward in result["policy_reward_mean"].items()}
            print(f"{result['timesteps_total']:7,} steps  reward by policy {by_policy}")
        return trainer.evaluate(num_episodes=20)["policy_reward_mean"]["listener"] / 20


if __name__ == "__main__":
    understood = main()
    print(f"targets understood: {understood:.0%}")
    assert understood >= 0.95
