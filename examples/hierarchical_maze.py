"""Hierarchy: the top level chooses the side on which to leave a room, and a walker agent executes each choice.

Three policies learn from one environment. Then the walkers stay fixed and the top level learns another maze.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollax import MultiAgentEnv, PolicySpec, PPOTrainer

MAZE = (
    "+-+-+-+-+",
    "|   |   |",
    "+ +-+ + +",
    "| |   | |",
    "+ + +-+-+",
    "|   |   |",
    "+-+ + + +",
    "|     |G|",
    "+-+-+-+-+",
)
OTHER_MAZE = (
    "+-+-+-+-+",
    "|G|     |",
    "+ + +-+ +",
    "| | |   |",
    "+ + + +-+",
    "| | |   |",
    "+ +-+-+ +",
    "|       |",
    "+-+-+-+-+",
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Moves of walkers through cells, and of the top level through rooms: north, east, south, west."""
ROOM_SIZE = 5
WALK_LENGTH = 12
WALKS = 20

TOP_LEVEL = "top_level"
WALKERS = ("north_south", "east_west")


class Maze(MultiAgentEnv):
    """Square rooms, each with a door in the middle of its open sides. An episode begins anywhere but in the goal room.

    `top_level` observes the room and chooses a side. That creates a walker, `north_south_<n>` or `east_west_<n>`, which
    observes its position in the room and the side. Its trajectory ends when it passes the door (reward 1) or runs out
    of moves; then the top level chooses again. The top level earns 1 for entering the goal room.
    """

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.drawing = env_config.get("maze", MAZE)
        self.rooms = len(self.drawing) // 2
        row, column = divmod("".join(self.drawing).index("G"), len(self.drawing[0]))
        self.goal = row // 2, column // 2
        self.rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.room = self.goal
        while self.room == self.goal:
            self.room = self._pair(self.rooms)
        self.cell = self._pair(ROOM_SIZE)
        self.walks = 0
        return {TOP_LEVEL: self._room_number()}, {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        going_on = {"__all__": False}
        if TOP_LEVEL in actions:
            self._send_walker(int(actions[TOP_LEVEL]))
            return {self.walker: self._sight()}, {}, going_on, going_on, {}
        passed = self._walk(int(actions[self.walker]))
        if not passed and self.moves < WALK_LENGTH:
            return {self.walker: self._sight()}, {}, going_on, going_on, {}
        arrived = self.room == self.goal
        # The reward belongs to the top level's choice that created this walker.
        rewards = {self.walker: float(passed), TOP_LEVEL: float(arrived)}
        terminateds = {self.walker: True, "__all__": arrived}
        truncateds = {"__all__": not arrived and self.walks == WALKS}
        return {TOP_LEVEL: self._room_number()}, rewards, terminateds, truncateds, {}

    def _send_walker(self, side: int) -> None:
        self.side, self.moves = side, 0
        self.walks += 1
        self.walker = f"{WALKERS[side % 2]}_{self.walks}"

    def _walk(self, move: int) -> bool:
        """Moves unless a wall blocks it; returns whether it passed the door on the walker's side."""
        self.moves += 1
        row, column = self.cell[0] + MOVES[move][0], self.cell[1] + MOVES[move][1]
        if row in range(ROOM_SIZE) and column in range(ROOM_SIZE):
            self.cell = row, column
        elif move == self.side and ROOM_SIZE // 2 in self.cell and self.is_open(self.room, move):
            self.room = self.room[0] + MOVES[move][0], self.room[1] + MOVES[move][1]
            self.cell = row % ROOM_SIZE, column % ROOM_SIZE
            return True
        return False

    def is_open(self, room: tuple[int, int], side: int) -> bool:
        """Returns whether a room has a door on that side."""
        return self.drawing[2 * room[0] + 1 + MOVES[side][0]][2 * room[1] + 1 + MOVES[side][1]] == " "

    def _room_number(self) -> int:
        return self.room[0] * self.rooms + self.room[1]

    def _sight(self) -> np.ndarray:
        return np.array([*self.cell, self.side // 2])

    def _pair(self, size: int) -> tuple[int, int]:
        row, column = self.rng.integers(size, size=2).tolist()
        return row, column


WALKER = PolicySpec(
    observation_space=gym.spaces.MultiDiscrete([ROOM_SIZE, ROOM_SIZE, 2]), action_space=gym.spaces.Discrete(4)
)
POLICIES = {
    # Each of its steps is a whole walk, so there are few: small minibatches.
    TOP_LEVEL: PolicySpec(
        observation_space=gym.spaces.Discrete(len(MAZE) // 2 * (len(MAZE) // 2)),
        action_space=gym.spaces.Discrete(4),
        config={"sgd_minibatch_size": 128, "entropy_coeff": 0.02},
    ),
    **dict.fromkeys(WALKERS, WALKER),
}


def policy_of(agent: str) -> str:
    """Returns `top_level`, or the walker's name without its number."""
    return agent if agent == TOP_LEVEL else agent.rpartition("_")[0]


def config(policies_to_train: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """Returns the config of both parts."""
    return {
        "multiagent": {
            "policies": POLICIES,
            "policy_mapping_fn": policy_of,
            "policies_to_train": policies_to_train,
        },
        "num_envs_per_worker": 64,
        "train_batch_size": 4096,
        "sgd_minibatch_size": 512,
        # Large steps would degrade a trained walker.
        "lr_schedule": [[0, 3e-3], [150_000, 0.0]],
        "gamma": 0.9,
        "evaluation_num_episodes": 50,
        "seed": 0,
        **changes,
    }


def train(trainer: PPOTrainer, iterations: int) -> float:
    """Trains and returns the share of 50 greedy episodes that reach the goal."""
    for _ in range(iterations):
        result = trainer.train()
        rewards = {
            name: round(reward, 2) for name, reward in result["policy_reward_mean"].items() if reward is not None
        }
        print(f"{result['timesteps_total']:7,} steps  mean reward by policy {rewards}")
    return trainer.evaluate()["policy_reward_mean"][TOP_LEVEL]


def main(iterations: int = 30) -> float:
    """Trains all policies, then the top level in another maze; returns the lower share of reached goals."""
    with PPOTrainer(env=Maze, config=config()) as trainer:
        reached = train(trainer, iterations)
        print(f"goals reached: {reached:.0%}")
        walkers = trainer.get_weights(WALKERS)
    with PPOTrainer(env=Maze, config=config([TOP_LEVEL], env_config={"maze": OTHER_MAZE})) as trainer:
        trainer.set_weights(walkers)
        return min(reached, train(trainer, iterations))


if __name__ == "__main__":
    reached = main()
    print(f"goals reached: {reached:.0%}")
    assert reached >= 0.8
