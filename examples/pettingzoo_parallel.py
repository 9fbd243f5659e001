"""PettingZoo's rock-paper-scissors against an opponent that cycles through its moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pettingzoo

from rollax import EnvContext, Policy, PPOTrainer


def make_game(context: EnvContext) -> Any:
    """Returns the environment of the library: both players act at the same time and observe the other's last move."""
    return pettingzoo.make("parallel", "classic/rps-v2", max_cycles=15)


class InTurn(Policy):
    """Cycles: paper, scissors, rock, paper, ..."""

    def compute_actions(self, obs_batch: np.ndarray, prev_action_batch: np.ndarray) -> tuple:  # type: ignore[override]
        return (prev_action_batch + 1) % 3, [], {}


def main(iterations: int = 15) -> float:
    """Trains and returns the learner's mean score in 20 greedy episodes of 15 rounds, each worth 1, 0 or -1."""
    config = {
        "multiagent": {
            "policies": {"learner": None, "opponent": InTurn},
            "policy_mapping_fn": lambda agent_id: "learner" if agent_id == "player_0" else "opponent",
            "policies_to_train": ["learner"],
        },
        "num_envs_per_worker": 8,
        "train_batch_size": 1024,
        "lr": 1e-3,
        "gamma": 0.0,  # the opponent's next move does not depend on the action
        "seed": 0,
    }
    with PPOTrainer(env=make_game, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} rounds  score {result['policy_reward_mean']['learner']:6.2f}")
        return trainer.evaluate(num_episodes=20)["policy_reward_mean"]["learner"]


if __name__ == "__main__":
    score = main()
    print(f"score: {score:.1f} of 15")
    assert score >= 14
