"""Environments with many kinds of spaces, and NumPy policies for them."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax import MultiAgentEnv, Policy
from rollax.core import trees

PAIR = spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(3)])
NESTED = spaces.Dict({"position": spaces.Box(-10, 10, (2, 3), np.float32), "pair": PAIR})
IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(4), "obs": spaces.Box(-1, 1, (2,), np.float64)})
ACTIONS = spaces.Tuple([spaces.Box(-2, 6, (2,), np.float32), spaces.MultiDiscrete([3, 5])])


class Random(gym.Env):
    """Random observations of a space, rewards with all digits; episodes of 1 to 5 steps with both kinds of ends."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left, self.kind = self.np_random.integers(1, 6), self.np_random.integers(2)
        return self.observation_space.sample(), {"left": self.left, "array": np.arange(2)}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        over = self.left == 0
        terminated, truncated = bool(over and self.kind == 0), bool(over and self.kind == 1)
        info = {"left": self.left, "tuple": (1, None), "lost": object()}
        return self.observation_space.sample(), self.np_random.normal(), terminated, truncated, info


class Two(MultiAgentEnv):
    """Two agents, "eye" and 7, with different spaces; agent 7 acts at every second step and ends first."""

    observation_spaces = {"eye": IMAGE, 7: NESTED}
    action_spaces = {"eye": spaces.Discrete(3), 7: ACTIONS}
    possible_agents = ("eye", 7)

    def reset(self, *, seed=None, options=None):
        for space in self.observation_spaces.values():
            space.seed(seed)
        self.count = 0
        return {agent: self.observation_spaces[agent].sample() for agent in ("eye", 7)}, {}

    def step(self, actions):
        self.count += 1
        agents = ["eye", *([7] if self.count % 2 == 0 and self.count <= 4 else [])]
        obs = {agent: self.observation_spaces[agent].sample() for agent in agents}
        rewards = {"eye": 1 / self.count, **({7: 1 / 3} if self.count <= 4 else {})}
        return obs, rewards, {7: self.count == 4, "__all__": False}, {"__all__": self.count == 6}, {}


class Acts(Policy):
    """Random actions, those of a Box also out of bounds; stores the columns for estimates."""

    batch_columns = frozenset({"agent_id", "t", "trajectory_id"})

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.rng = np.random.default_rng(5)

    def compute_actions(self, obs_batch):  # type: ignore[override]
        rows = trees.length(obs_batch)

        def drawn(space: Any) -> Any:
            if isinstance(space, spaces.Tuple):
                return tuple(map(drawn, space.spaces))
            if isinstance(space, spaces.Box):
                return self.rng.normal(size=(rows, *space.shape)).astype(np.float32)
            choices = space.nvec if space.shape else space.n
            return (self.rng.random((rows, *space.shape)) * choices).astype(np.int64)

        inputs = self.rng.normal(size=(rows, 3)).astype(np.float32)
        return drawn(self.action_space), [], {"action_logp": inputs[:, 0], "action_dist_inputs": inputs}
