"""The spaces of agents: one for all, or each its own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from gymnasium import Space

from rollax.spaces import same_space


def space_of(env: Any, kind: str, agent: Hashable) -> Space | None:
    """One agent's space: its own, else that of all, else None.

    Args:
        env: the environment.
        kind: "observation_space" or "action_space".
        agent: its id.
    """
    return (getattr(env, f"{kind}s", None) or {}).get(agent, getattr(env, kind, None))


def spaces_of_agents(env: Any, kind: str) -> tuple[Space | None, Mapping[Hashable, Space] | None]:
    """The space of every agent, and the spaces by agent id; None for what the environment does not have."""
    space, by_agent = getattr(env, kind, None), getattr(env, f"{kind}s", None)
    if space is None and by_agent and by_agent.keys() >= set(getattr(env, "possible_agents", None) or ()):
        space = common_space(by_agent)
    return space, by_agent


def common_space(spaces: Mapping[Hashable, Space]) -> Space | None:
    """The common space of all agents, or None if they differ."""
    first, *others = spaces.values()
    return first if all(same_space(first, other) for other in others) else None
