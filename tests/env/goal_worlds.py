"""Environments with goals."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LIMIT = 5
"""Steps of an episode."""


class Reach(gym.Env):
    """A step moves one place to the left or right from 0. Goals, above 100, are never reached, as places below 10 are.

    `env_config` has the action space: Discrete(2), or a Box whose sign counts.
    """

    def __init__(self, context: Any) -> None:
        self.action_space = context["space"]
        place = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        parts = {"observation": place, "achieved_goal": place, "desired_goal": place}
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(100, 200, 1).astype(np.float32)
        self.place, self.steps = np.zeros(1, np.float32), 0
        return self._observation(), {}

    def step(self, action):
        right = action > 0 if isinstance(self.action_space, spaces.Discrete) else np.ravel(action)[0] > 0
        self.place = self.place + np.float32(1 if right else -1)
        self.steps += 1
        reward = float(self.compute_reward(self.place, self.goal, {}))
        terminated = bool(self.compute_terminated(self.place, self.goal, {}))
        return self._observation(), reward, terminated, self.steps == LIMIT, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == {}
        return -(np.abs(achieved_goal - desired_goal) > 0.5).any(axis=-1).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return (np.abs(achieved_goal - desired_goal) < 0.5).all(axis=-1)

    def _observation(self):
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}
