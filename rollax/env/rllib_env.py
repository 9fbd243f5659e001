"""RLlib's multi-agent environments as `MultiAgentEnv`s; RLlib itself is never imported here."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym

from rollax.env.adapters import is_legacy
from rollax.env.base_env import in_order
from rollax.env.legacy import LegacyMultiAgentEnv
from rollax.env.multi_agent.multi_agent_env import AgentDict, MultiAgentEnv, are_dicts
from rollax.env.rows import ALL


class RLlibEnv(MultiAgentEnv):
    """Adds parts that RLlib does not require: `"__all__"` in both flag dicts, and spaces by agent as attributes."""

    def __init__(self, env: Any) -> None:
        self.as_written = env
        self.env = LegacyMultiAgentEnv(env) if is_legacy(env) else env
        self.metadata, self.render_mode = getattr(env, "metadata", None) or {}, getattr(env, "render_mode", None)
        self.possible_agents = list(in_order(getattr(env, "possible_agents", None) or ())) or None
        self.observation_space, self.observation_spaces = _spaces(env, "observation_space")
        self.action_space, self.action_spaces = _spaces(env, "action_space")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        result = self.env.step(actions)
        if not are_dicts(result, 5):
            return result  # refused later, as in any environment
        obs, rewards, terminateds, truncateds, infos = result
        return obs, rewards, {ALL: False, **terminateds}, {ALL: False, **truncateds}, infos

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _spaces(env: Any, kind: str) -> tuple[gym.Space | None, dict[Hashable, gym.Space] | None]:
    """The common space, and the spaces by agent id; at least one of the two is None.

    RLlib has a dict by agent in `observation_spaces`, a Dict space by agent or one space for all agents in
    `observation_space`, or the method `get_observation_space(agent)`.
    """
    shared = getattr(env, kind, None)
    by_agent: dict[Hashable, gym.Space] | None = getattr(env, f"{kind}s", None)
    if not by_agent:
        known = (getattr(env, name, None) for name in ("possible_agents", "agents", "_agent_ids"))
        agents: list[Any] = sorted(next(filter(None, known), ()), key=str)
        by_agent = {agent: space for agent in agents if (space := _space(env, kind, agent)) is not None}
    return (None, dict(by_agent)) if by_agent else (shared, None)


def _space(env: Any, kind: str, agent: Any) -> gym.Space | None:
    ask = getattr(env, f"get_{kind}", None)
    if ask is not None:
        return ask(agent)
    shared = getattr(env, kind, None)  # early versions of RLlib have no such method
    return shared.spaces.get(agent, shared) if isinstance(shared, gym.spaces.Dict) else shared
