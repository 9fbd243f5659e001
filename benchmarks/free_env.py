"""A multi-agent environment with almost no cost per step, so that sampling it measures the library.

Both libraries require their own base class: each side mixes `FreeAgents` into its `MultiAgentEnv`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

OBSERVATION_SPACE: Space = Box(-10.0, 10.0, (4,), np.float32)
ACTION_SPACE: Space = Discrete(2)
_DISTINCT_STEPS = 16


class FreeAgents:
    """All agents act at every step, all dicts are built in advance, and an episode is `length` steps long."""

    def __init__(self, num_agents: int = 100, length: int = 200) -> None:
        rng = np.random.default_rng(0)
        self.agents = [f"agent_{i}" for i in range(num_agents)]
        self.possible_agents = list(self.agents)
        self.observation_spaces = dict.fromkeys(self.agents, OBSERVATION_SPACE)
        self.action_spaces = dict.fromkeys(self.agents, ACTION_SPACE)
        self._obs = [
            {agent: rng.normal(size=4).clip(-10, 10).astype(np.float32) for agent in self.agents}
            for _ in range(_DISTINCT_STEPS)
        ]
        self._rewards = dict.fromkeys(self.agents, 1.0)
        running, ended = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, True)
        self._running = running | {"__all__": False}
        self._ended = ended | {"__all__": True}
        self._length = length
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begins an episode; the observations do not depend on the seed."""
        self._t = 0
        return dict(self._obs[0]), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Returns copies of the prepared dicts, because callers may modify them."""
        self._t += 1
        truncated = self._ended if self._t >= self._length else self._running
        obs = self._obs[self._t % _DISTINCT_STEPS]
        return dict(obs), dict(self._rewards), dict(self._running), dict(truncated), {}
