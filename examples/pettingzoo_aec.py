"""PettingZoo's connect four, with turns and masks of full columns, against random moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pettingzoo

from rollax import EnvContext, Policy, PPOTrainer


def make_game(context: EnvContext) -> Any:
    """Returns the environment of the library; its observations have an `action_mask`, which policies respect."""
    return pettingzoo.make("aec", "classic/connect_four-v3")


class RandomMoves(Policy):
    """Drops its piece into a random column that is not full."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.rng = np.random.default_rng(self.config.seed)

    def compute_actions(self, obs_batch: dict[str, np.ndarray]) -> tuple:  # type: ignore[override]
        free = obs_batch["action_mask"]
        return np.argmax(free * self.rng.random(free.shape), axis=1), [], {}


def learner_in_either_seat(agent_id: str, episode: Any) -> str:
    """The learner makes the first move on every other board."""
    return "learner" if (agent_id == "player_0") == (episode.env_index % 2 == 0) else "random"


def main(iterations: int = 25) -> float:
    """Trains and returns the share of 200 greedy games won (a draw counts half)."""
    config = {
        "multiagent": {
            "policies": {"learner": None, "random": RandomMoves},
            "policy_mapping_fn": learner_in_either_seat,
            "policies_to_train": ["learner"],
        },
        "num_envs_per_worker": 32,
        "count_steps_by": "agent_steps",
        "train_batch_size": 4096,
        "sgd_minibatch_size": 512,
        "num_sgd_iter": 4,
        "lr": 1e-3,
        "entropy_coeff": 0.01,
        "seed": 0,
    }
    with PPOTrainer(env=make_game, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            won = ((result["policy_reward_mean"]["learner"] or 0) + 1) / 2
            print(f"{result['timesteps_total']:7,} moves  won {won:.0%}")
        return (trainer.evaluate(num_episodes=200)["policy_reward_mean"]["learner"] + 1) / 2


if __name__ == "__main__":
    won = main()
    print(f"won: {won:.0%}")
    assert won >= 0.9
