"""Environments that record how candidates were played."""

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import Callbacks, EnvContext


class Drift(gym.Env):
    """A point that drifts randomly and with the action; episodes of 3 to 9 steps, by the seed.

    Keys of the config: "resets", a deque of all seeds; "steps", of all vector indices that step; "fails", a deque of
    the numbers of resets after which the next step raises.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, context: EnvContext | dict[str, Any]) -> None:
        self.context: Any = context
        self.over = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        resets = self.context.get("resets")
        if resets is not None:
            resets.append(seed)
        self.place, self.left, self.over = self.np_random.normal(0, 1, 3), int(self.np_random.integers(3, 10)), False
        return self.place.astype(np.float32), {}

    def step(self, action):
        assert not self.over, "a step after the end of an episode"
        assert self.action_space.contains(action)
        self.context.get("steps", deque()).append(getattr(self.context, "vector_index", 0))
        fails = self.context.get("fails")
        if fails and len(self.context["resets"]) in fails:
            fails.remove(len(self.context["resets"]))
            raise ValueError("no such level")
        self.left -= 1
        self.over = self.left == 0
        self.place = self.place + 0.1 * self.np_random.normal(0, 1, 3)
        self.place[:2] += action
        return self.place.astype(np.float32), -float(np.abs(self.place).sum()), self.over, False, {}


class StepCounter(Callbacks):
    """Reports the number of steps of each episode as a custom metric."""

    def on_episode_start(self, *, worker, base_env, episode):
        episode.user_data["steps"] = 0

    def on_episode_step(self, *, worker, base_env, episode):
        episode.user_data["steps"] += 1

    def on_episode_end(self, *, worker, base_env, episode):
        episode.custom_metrics["steps"] = episode.user_data["steps"]
