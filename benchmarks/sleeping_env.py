"""An environment that sleeps in every step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.free_env import ACTION_SPACE, OBSERVATION_SPACE

_OBSERVATION = np.zeros(4, np.float32)


class SleepingEnv(gym.Env):
    """Sleeps in every step; an episode is 100 steps long.

    Args:
        config: `sleep_ms`, milliseconds.
    """

    observation_space, action_space = OBSERVATION_SPACE, ACTION_SPACE

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._seconds = config["sleep_ms"] / 1000
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode."""
        self._count = 0
        return _OBSERVATION, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleeps."""
        time.sleep(self._seconds)
        self._count += 1
        return _OBSERVATION, 1.0, self._count == 100, False, {}
