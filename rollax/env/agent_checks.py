"""Checks on the agents of a sub-environment: their ids, and whether any of them can act."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from rollax.core.space_codec import outline
from rollax.errors import EnvError, MultiAgentError

MOST_IDLE_POLLS = 1000
"""Consecutive polls with reports but without an agent that can act, after which the environment counts as stuck."""


class IdlePolls:
    """Counts consecutive polls that report on a sub-environment while none of its agents can act."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.counts: dict[int, int] = {}
        """Consecutive idle polls, by sub-environment."""

    def idle(self, env_id: int, reported: Iterable[Hashable], alive: Iterable[Hashable]) -> None:
        """Counts a poll that reports on a sub-environment while none of its agents can act.

        Raises:
            EnvError: too many such polls without a break.
        """
        count = self.counts.get(env_id, 0) + 1
        self.counts[env_id] = count
        if count >= MOST_IDLE_POLLS:
            raise stuck(f"{self._name}, sub-environment {env_id}", reported, alive)

    def acting(self, env_id: int) -> None:
        """Resets the count, because an agent can act in this sub-environment."""
        self.counts.pop(env_id, None)


def stuck(where: str, reported: Iterable[Hashable], alive: Iterable[Hashable]) -> EnvError:
    """The error of an environment in which no agent can act for many polls."""
    what = f"No agent could act for {MOST_IDLE_POLLS} polls in a row."
    return EnvError(what, where, f"rows of agents {_names(reported)}; alive: {_names(alive)}").expected(
        "an observation of an agent that is alive, or the episode's end",
        "end the episode ('__all__' True) when its last agent has ended, and omit agents that have ended from "
        "obs, rewards and flags",
    )


def _names(agents: Iterable[Hashable]) -> list[str]:
    return sorted({str(agent) for agent in agents} - {"__all__"})


def check_by_agent(what: str, values: Any, where: str, kind: type = Mapping) -> None:
    """Raises `MultiAgentError` unless the values of several agents are a dict by agent id."""
    if not isinstance(values, kind):
        raise MultiAgentError.is_not(what, "a dict", where, outline(values)).fix(
            f"return or pass {what} by agent id, or {{}} if there are none"
        )


def undeclared(
    agents: Iterable[Hashable], declared: Collection[Hashable], where: str, part: str = ""
) -> MultiAgentError:
    """The error for the first undeclared one of these agents; `part` names the dict that has the agent: "in obs "."""
    agent = next(agent for agent in agents if agent not in declared)
    return MultiAgentError(
        f"An agent {part}is not declared by the environment.", f"{where}, agent {agent!r}", agent
    ).expected(f"one of possible_agents: {_names(declared)}", "correct the id, or add it to possible_agents")
