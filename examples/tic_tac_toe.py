"""Self-play: one policy plays both sides of PettingZoo's tic-tac-toe; it is evaluated against random moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pettingzoo

from rollax import EnvContext, EvaluationResult, Policy, PolicySpec, PPOTrainer


def make_game(context: EnvContext) -> Any:
    """Returns the environment of the library: agents take turns, and a mask marks the free squares."""
    return pettingzoo.make("aec", "classic/tictactoe-v3")


class RandomMoves(Policy):
    """Takes a random free square."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.rng = np.random.default_rng(self.config.seed)

    def compute_actions(self, obs_batch: dict[str, np.ndarray]) -> tuple[np.ndarray, list, dict]:  # type: ignore[override]
        free = obs_batch["action_mask"]
        return np.argmax(free * self.rng.random(free.shape), axis=1), [], {}


def seat_by_board(agent: str, episode: Any) -> str:
    """The learner makes the first move on every other board."""
    return "learner" if (agent == "player_1") == (episode.env_index % 2 == 0) else "random"


SELF_PLAY = {
    "multiagent": {"policies": {"learner": None}, "policy_mapping_fn": lambda agent: "learner"},
    # Only evaluation uses the random opponent.
    "evaluation_config": {
        "multiagent": {
            "policies": {"learner": None, "random": PolicySpec(RandomMoves)},
            "policy_mapping_fn": seat_by_board,
            "policies_to_train": ["learner"],
        }
    },
    "num_envs_per_worker": 64,
    "count_steps_by": "agent_steps",
    "train_batch_size": 4096,
    "rollout_fragment_length": 16,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 8,
    "lr_schedule": [[0, 1e-3], [300_000, 1e-4]],
    "evaluation_num_episodes": 128,
    # A large entropy bonus, because a random opponent leaves the lines of the best play.
    "entropy_coeff": 0.15,
}


def score(evaluation: EvaluationResult) -> float:
    """Returns the mean score of the games: 1 for a win, 1/2 for a draw."""
    return (evaluation["policy_reward_mean"]["learner"] + 1) / 2


def main(iterations: int = 50) -> float:
    """Trains and returns the score of 512 greedy games against random moves, half of them in each seat."""
    with PPOTrainer(env=make_game, config={**SELF_PLAY, "seed": 0}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            if result["training_iteration"] % 5 == 0:
                reached = score(trainer.evaluate())
                print(f"{result['timesteps_total']:7,} moves  score against random moves {reached:.2f}")
        return score(trainer.evaluate(num_episodes=512))


if __name__ == "__main__":
    reached = main()
    print(f"score: {reached:.3f}")
    assert reached >= 0.9
