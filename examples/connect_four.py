"""Connect four by self-play: a league of past selves, then games against a player that looks one move ahead.

python examples/connect_four.py [FOLDER] saves a checkpoint into a new folder, for examples/connect_four_page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import BaseEnv, EvaluationResult, League, Policy, PolicySpec, PPOTrainer, Rows

ROWS, COLUMNS = 6, 7
PLAYERS = ("first", "second")
OBSERVATION_SPACE = gym.spaces.Dict(
    {
        # Planes: the pieces of the player that moves, and of the opponent; the empty places that would complete a line
        # of four for the player, and for the opponent. Row 0 is the lowest.
        "observation": gym.spaces.Box(0, 1, (ROWS, COLUMNS, 4), np.uint8),
        # Columns in which the player wins with its next move, and columns in which the opponent would.
        "hints": gym.spaces.MultiBinary(2 * COLUMNS),
        "action_mask": gym.spaces.MultiBinary(COLUMNS),
    }
)

# A board is a 64-bit number for each player. Row r of column c is bit 7 c + r; the seventh bit of a column stays empty,
# so that lines do not continue in the next column.
_PLACES = (7 * np.arange(COLUMNS) + np.arange(ROWS)[:, None]).astype(np.uint64)  # [rows, columns]
_BOARD = (np.uint64(1) << _PLACES).sum(dtype=np.uint64)
_VERTICAL, *_OTHERS = map(np.uint64, (1, 7, 6, 8))  # the distance of neighbours: vertical, horizontal, diagonal
_ONE, _TWO, _THREE = map(np.uint64, (1, 2, 3))


def has_line(pieces: np.ndarray) -> np.ndarray:
    """Returns [N] whether there are four in a line."""
    found = np.zeros(pieces.shape, bool)
    for distance in (_VERTICAL, *_OTHERS):
        pairs = pieces & (pieces >> distance)
        found |= (pairs & (pairs >> (_TWO * distance))) != 0
    return found


def completing(pieces: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Returns [N] the empty places that would complete a line of four."""
    places = (pieces << _ONE) & (pieces << _TWO) & (pieces << _THREE)
    for one in _OTHERS:
        two, three = _TWO * one, _THREE * one
        below, above = (pieces << one) & (pieces << two), (pieces >> one) & (pieces >> two)
        places |= below & ((pieces << three) | (pieces >> one)) | above & ((pieces >> three) | (pieces << one))
    return places & empty


class ConnectFour(BaseEnv):
    """Many boards at once. Each poll has a row for the player that moves next, and for both when a game has ended.

    A win earns 1 and a loss -1; a draw earns 0.
    """

    possible_agents = PLAYERS
    observation_space = OBSERVATION_SPACE
    action_space = gym.spaces.Discrete(COLUMNS)

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.num_envs = env_config.get("boards", 64)
        self.pieces = np.zeros((self.num_envs, 2), np.uint64)
        self.heights = np.zeros((self.num_envs, COLUMNS), np.int64)
        self.moves = np.zeros(self.num_envs, np.int64)
        self.columns = np.full(self.num_envs, -1)  # the next move; -1 on a board that waits for none

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: Any) -> None:
        self.columns[rows.env_index if selection is None else rows.env_index[selection]] = actions

    def poll_rows(self) -> Rows:
        boards = (self.columns >= 0).nonzero()[0]
        column, player = self.columns[boards], self.moves[boards] % 2
        places = _PLACES[0][column] + self.heights[boards, column].astype(np.uint64)
        self.pieces[boards, player] |= _ONE << places
        self.heights[boards, column] += 1
        self.moves[boards] += 1
        self.columns[boards] = -1
        won = has_line(self.pieces[boards, player])
        over = won | (self.moves[boards] == ROWS * COLUMNS)
        going, ended = boards[~over], boards[over]
        # A game that has ended has a row of the player that moved, and a row of the other.
        envs = np.concatenate([ended, ended, going])
        players = np.concatenate([player[over], 1 - player[over], self.moves[going] % 2])
        rewards = np.concatenate([won[over], -1.0 * won[over], np.zeros(len(going))])
        ends = np.arange(len(envs)) < 2 * len(ended)
        return self._rows(envs, players, rewards, ends, starts=~ends & (self.moves[envs] == 1), ended=ended)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        self.pieces[env_index] = 0
        self.heights[env_index] = self.moves[env_index] = 0
        self.columns[env_index] = -1
        begin, no = np.ones(len(env_index), bool), np.zeros(len(env_index), bool)
        return self._rows(env_index, np.zeros(len(env_index), np.int64), np.zeros(len(env_index)), no, begin)

    def rest_rows(self, env_index: np.ndarray) -> bool:
        self.columns[env_index] = -1
        return True

    def _rows(
        self,
        envs: np.ndarray,
        players: np.ndarray,
        rewards: np.ndarray,
        ends: np.ndarray,
        starts: np.ndarray,
        ended: np.ndarray | None = None,
    ) -> Rows:
        return Rows(
            env_index=envs,
            slots=2 * envs + players,
            obs=observed(self.pieces[envs, players], self.pieces[envs, 1 - players], self.heights[envs]),
            rewards=rewards,
            terminateds=ends,
            truncateds=np.zeros(len(envs), bool),
            starts=starts,
            acts=~ends,
            ended_envs=np.empty(0, np.int64) if ended is None else ended,
            agents=[PLAYERS[player] for player in players.tolist()],
        )


def observed(own: np.ndarray, other: np.ndarray, heights: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the observations of N boards: the pieces of the player that moves, those of the other, [N, 7] heights."""
    empty = _BOARD & ~(own | other)
    boards = np.stack([own, other, completing(own, empty), completing(other, empty)], -1)
    planes = ((boards[:, None, None] >> _PLACES[..., None]) & _ONE).astype(np.int8)
    free = heights < ROWS
    next_row = np.minimum(heights, ROWS - 1)[:, None, :, None]
    hints = np.take_along_axis(planes[..., 2:], next_row, axis=1)[:, 0] * free[..., None]  # [N, 7, 2]
    return {
        "observation": planes.astype(np.uint8),
        "hints": hints.swapaxes(1, 2).reshape(len(planes), -1),
        "action_mask": free.astype(np.int8),
    }


class Random(Policy):
    """Drops its pieces at random."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.rng = np.random.default_rng(self.config.seed)

    def compute_actions(self, obs_batch: dict[str, np.ndarray]) -> tuple[np.ndarray, list, dict]:  # type: ignore[override]
        values = obs_batch["action_mask"] * (1 + self.reasons(obs_batch["hints"]))
        return np.argmax(values + self.rng.random(values.shape), axis=1), [], {}

    def reasons(self, hints: np.ndarray) -> np.ndarray:
        """Returns [N, 7] integers: the higher, the better is a column."""
        return np.zeros((len(hints), COLUMNS), np.int64)


class OneMoveAhead(Random):
    """Wins if it can; else it prevents that the opponent wins with the next move; else it moves at random."""

    def reasons(self, hints: np.ndarray) -> np.ndarray:
        return 2 * hints[:, :COLUMNS] + hints[:, COLUMNS:]


class ConnectFourLeague(League):
    size = 6
    self_share = 0.4
    games = 400


def seat_by_board(agent: str, episode: Any) -> str:
    """The learner makes the first move on every other board."""
    return "learner" if (agent == "first") == (episode.env_index % 2 == 0) else "opponent"


def against(opponent: type[Policy]) -> dict[str, Any]:
    """Returns the config of an evaluation against a fixed opponent."""
    policies = {"learner": None, "opponent": PolicySpec(opponent)}
    multiagent = {"policies": policies, "policy_mapping_fn": seat_by_board, "policies_to_train": ["learner"]}
    return {"multiagent": multiagent, "callbacks": None}


CONFIG = {
    **ConnectFourLeague.config(),
    "env_config": {"boards": 256},
    "evaluation_config": against(OneMoveAhead),
    "evaluation_num_episodes": 256,
    "model": {
        "conv_filters": [[32, 4, 1]],  # the kernel covers every line of four
        "conv_dense": 96,
        "fcnet_hiddens": [128],
        "fcnet_activation": "relu",
        "vf_share_layers": True,
    },
    "train_batch_size": 8192,
    "rollout_fragment_length": 32,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 4,
    "lr_schedule": [[0, 7e-4], [1_000_000, 1e-4]],
    "gamma": 0.99,
    "lambda": 0.9,
    "entropy_coeff_schedule": [[0, 0.04], [1_000_000, 0.02]],
}


def score(evaluation: EvaluationResult) -> float:
    """Returns the mean score of the games: 1 for a win, 1/2 for a draw."""
    return (evaluation["policy_reward_mean"]["learner"] + 1) / 2


def main(iterations: int = 60, out: Path | None = None) -> float:
    """Trains and returns the score of 1000 greedy games against one move ahead, half of them in each seat.

    `out` is a new folder for a checkpoint.
    """
    with PPOTrainer(env=ConnectFour, config={**CONFIG, "seed": 0}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            if result["training_iteration"] % 10 == 0:
                league, reached = result["league"], score(trainer.evaluate())
                print(
                    f"{result['timesteps_total']:9,} moves  rating {league['rating']:.0f}"
                    f"  opponents {league['snapshots']}  score against one move ahead {reached:.3f}",
                    flush=True,
                )
        if out is not None:
            print(f"play against it: python examples/connect_four_page {trainer.save(out)}")
        return score(trainer.evaluate(num_episodes=1000))


if __name__ == "__main__":
    reached = main(out=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(f"score: {reached:.3f}")
    assert reached >= 0.92
