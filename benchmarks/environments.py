"""Environments that several sides use: all but free to step, slow, or made of several others.

Only Gymnasium and NumPy are imported, because the other libraries' sides use this module too. Each library requires its
own base class of multi-agent environments: a side mixes `FreeAgents` or `ManyCartPoles` into it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

ALL = "__all__"
OBSERVATION_SPACE: Space = Box(-10.0, 10.0, (4,), np.float32)
ACTION_SPACE: Space = Discrete(2)
_DISTINCT_STEPS = 16


class FreeAgents:
    """A multi-agent environment with almost no cost per step, so that sampling it measures the library.

    All agents act at every step, all dicts are built in advance, and an episode is `length` steps long.
    """

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
        self._running = running | {ALL: False}
        self._ended = ended | {ALL: True}
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


class ManyCartPoles:
    """Several independent `CartPole-v1` in one multi-agent environment.

    Each agent balances its own pole and terminates when it falls; the episode ends with the last agent.

    Args:
        num_agents: number of agents.
    """

    def __init__(self, num_agents: int) -> None:
        self.envs = {agent: gym.make("CartPole-v1") for agent in range(num_agents)}
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.possible_agents = list(self.envs)
        self.balancing: set[int] = set()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begins an episode of all agents."""
        self.balancing = set(self.envs)
        obs = {}
        for agent, env in self.envs.items():
            obs[agent] = env.reset(seed=None if seed is None else seed + agent)[0]
        return obs, {}

    def step(self, actions: dict[int, int]) -> tuple[dict, dict, dict, dict, dict]:
        """Steps the poles of the agents that act."""
        obs: dict[int, Any] = {}
        rewards: dict[int, Any] = {}
        terminateds: dict[Any, bool] = {}
        truncateds: dict[Any, bool] = {ALL: False}
        for agent, action in actions.items():
            obs[agent], rewards[agent], terminated, truncated, _ = self.envs[agent].step(action)
            if terminated or truncated:
                terminateds[agent], truncateds[agent] = terminated, truncated
                self.balancing.discard(agent)
        terminateds[ALL] = not self.balancing
        return obs, rewards, terminateds, truncateds, {}


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
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Sleeps."""
        time.sleep(self._seconds)
        self._count += 1
        return np.zeros(4, np.float32), 1.0, self._count == 100, False, {}


def make_native(env_id: str, num_envs: int) -> gym.vector.VectorEnv:
    """Returns the vector env that Gymnasium's registry has for `env_id`: the same for the raw side and for rollax."""
    if env_id.startswith("ALE/"):
        import ale_py

        gym.register_envs(ale_py)
    return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
