"""Cooperative games of two agents whose best returns are known."""

from typing import ClassVar

import numpy as np
from gymnasium import spaces

from rollax import EnvContext, MultiAgentEnv

PAIR = ("left", "right")


def paired(env: MultiAgentEnv) -> MultiAgentEnv:
    """The environment with both agents in one group, `pair`."""
    return env.with_agent_groups({"pair": PAIR})


class TwoStep(MultiAgentEnv):
    """The first action of `left` leads to state 1, where both earn 7 for all actions, or to state 2, where they earn
    the entry of `TABLE`. Both observe the state.

    Source: Rashid et al. (2018), section 5 and Table 1, arXiv:1803.11485.
    """

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)
    possible_agents = PAIR
    TABLE = ((0.0, 1.0), (1.0, 8.0))

    def __init__(self, context: EnvContext) -> None:
        self.state = 0

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return dict.fromkeys(PAIR, 0), {}

    def step(self, actions):
        earned, over = 0.0, self.state > 0
        if over:
            earned = 7.0 if self.state == 1 else self.TABLE[actions["left"]][actions["right"]]
        else:
            self.state = 1 + int(actions["left"])
        return dict.fromkeys(PAIR, self.state), {"left": earned}, {"__all__": over}, {"__all__": False}, {}


class Lift(MultiAgentEnv):
    """Two carriers in a room of 4 × 4 cells must lift a box in one of the corners, both there and at the same step.

    Only the first observation shows the corner of the box. Later each agent sees its own cell, and whether the other
    one is in the same cell, so the task requires memory. Steps into a wall are masked. Each step costs 0.05, lifting
    earns 1, and the episode ends after 20 steps. Cells and corner are random: the longer of the two paths has 3.89
    steps on average, so the best mean return is 1 - 0.05 · 3.89 = 0.81. Without memory the agents can only wait in some
    corner, the right one in a quarter of the episodes: at most ¼ · 0.81 - ¾ = -0.55.
    """

    SIDE: ClassVar[int] = 4
    MOVES: ClassVar = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))  # the last one lifts
    observation_space = spaces.Dict(
        {
            "cell": spaces.MultiDiscrete([SIDE, SIDE]),
            "corner": spaces.Discrete(5),  # 4: not shown
            "together": spaces.Discrete(2),
            "action_mask": spaces.MultiBinary(5),
            "state": spaces.MultiDiscrete([SIDE] * 4 + [4]),
        }
    )
    action_space = spaces.Discrete(5)
    possible_agents = PAIR

    def __init__(self, context: EnvContext) -> None:
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.cells = self.rng.integers(self.SIDE, size=(2, 2))
        self.corner = int(self.rng.integers(4))
        self.steps = 0
        return self._seen(self.corner), {}

    def step(self, actions):
        self.steps += 1
        there = (self.cells == (self.SIDE - 1) * np.array(divmod(self.corner, 2))).all()
        lifted = bool(there and all(actions[agent] == 4 for agent in PAIR))
        for cell, agent in zip(self.cells, PAIR, strict=True):
            cell += self.MOVES[actions[agent]]
        assert (self.cells >= 0).all()
        assert (self.cells < self.SIDE).all()
        obs = self._seen(4)
        too_late = self.steps == 20 and not lifted
        return obs, {"right": 1.0 if lifted else -0.05}, {"__all__": lifted}, {"__all__": too_late}, {}

    def _seen(self, corner):
        together = int((self.cells[0] == self.cells[1]).all())
        state = np.append(self.cells, self.corner)
        return {
            agent: {
                "cell": cell.copy(),
                "corner": corner,
                "together": together,
                "action_mask": self._mask(cell),
                "state": state,
            }
            for agent, cell in zip(PAIR, self.cells, strict=True)
        }

    def _mask(self, cell):
        (row, column), last = cell, self.SIDE - 1
        return np.array([row > 0, row < last, column > 0, column < last, True], np.int8)


class Roll(MultiAgentEnv):
    """Three agents, one of which ends at each step from the second on, and a fourth, `alone`. Every action earns 1."""

    observation_space = spaces.Dict({"seen": spaces.Box(0, 1, (2,), np.float32), "action_mask": spaces.MultiBinary(2)})
    action_space = spaces.Discrete(2)
    possible_agents = ("a", "b", "c", "alone")

    def __init__(self, context: EnvContext) -> None:
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen(), {}

    def step(self, actions):
        before, self.steps = self._there(), self.steps + 1
        assert set(actions) == set(before)
        obs = self._seen()
        ended = {agent: agent not in obs for agent in before}
        return obs, dict.fromkeys(before, 1.0), {**ended, "__all__": not obs}, {"__all__": False}, {}

    def _there(self):
        return (*self.possible_agents[max(self.steps - 1, 0) : 3], *(["alone"] if self.steps < 4 else []))

    def _seen(self):
        mask = np.array([1, self.steps % 2], np.int8)
        seen = np.full(2, 0.25 + self.steps / 8, np.float32)
        return {agent: {"seen": seen, "action_mask": mask} for agent in self._there()}
