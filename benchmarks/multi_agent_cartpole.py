"""Several independent `CartPole-v1` in one multi-agent environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

ALL = "__all__"


class ManyCartPoles:
    """Each agent balances its own pole and terminates when it falls; the episode ends with the last agent.

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
