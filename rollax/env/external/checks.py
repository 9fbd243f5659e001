"""Checks of the calls to external episodes, made in the calling threads."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax import spaces
from rollax.env import checks
from rollax.env.base_env import row_values
from rollax.env.external.queue import ExternalEpisode
from rollax.env.observations import as_columns, check_observation, stacked
from rollax.errors import EnvError, MultiAgentError

ByAgent = Mapping[Hashable, Any]
"""Agent id -> an observation, an action, a reward or an info."""


class ExternalChecks:
    """Refuses invalid values, and converts observations and actions to the dtypes of their spaces.

    Args:
        name: name of the environment in error messages.
        observation_space: space of every agent; None leaves the checks to the policies.
        action_space: space of every agent; None leaves logged actions unchecked.
        agents: all ids that may appear; None for any.
    """

    def __init__(
        self,
        name: str,
        observation_space: Space | None,
        action_space: Space | None,
        agents: Iterable[Hashable] | None,
    ) -> None:
        self.name = name
        self._observation_space, self._action_space = observation_space, action_space
        self._declared = None if agents is None else frozenset(agents)

    def where(self, episode: ExternalEpisode) -> str:
        """Returns the name of an episode in error messages."""
        return f"{self.name}, episode {episode.id!r}"

    def flag(self, name: str, flag: Any, where: str) -> None:
        """Raises an error for a flag that is no boolean."""
        if not isinstance(flag, bool | np.bool_):
            raise checks.not_boolean(name, flag, where)

    def by_agent(self, what: str, by_agent: Any, episode: ExternalEpisode) -> None:
        """Raises an error for values of several agents that are no dict."""
        if not isinstance(by_agent, Mapping):
            raise MultiAgentError(
                f"{what} that are no dict.",
                where=self.where(episode),
                got=checks.outline(by_agent),
                expected="a dict by agent id",
                fix="name the agent of each value",
            )

    def agents(self, episode: ExternalEpisode, by_agent: Any) -> None:
        """Raises an error for observations of no agent or of undeclared agents."""
        self.by_agent("obs", by_agent, episode)
        if not by_agent:
            raise MultiAgentError(
                "Observations of no agent.",
                where=self.where(episode),
                got={},
                expected="an observation for at least one agent",
                fix="call it only if an agent acts or ends",
            )
        self._are_declared(episode, by_agent)

    def _are_declared(self, episode: ExternalEpisode, by_agent: Iterable[Hashable]) -> None:
        if self._declared is not None and not self._declared.issuperset(by_agent):
            raise MultiAgentError(
                "An agent that the environment does not declare.",
                where=self.where(episode),
                got=next(agent for agent in by_agent if agent not in self._declared),
                expected=f"one of possible_agents: {sorted(map(str, self._declared))}",
                fix="correct the id, or possible_agents",
            )

    def observations(
        self, episodes: Sequence[ExternalEpisode], by_agents: Sequence[ByAgent], *, blocking: bool
    ) -> list[Any]:
        """Returns the observations in the dtypes of their space, one after another.

        Args:
            episodes: the episodes.
            by_agents: observations by agent, per episode.
            blocking: whether the caller waits until they have been read; otherwise they are copied.
        """
        values = [value for by_agent in by_agents for value in by_agent.values()]
        space, first = self._observation_space, values[0] if values else None
        if space is None:
            return values if blocking else copy.deepcopy(values)

        def where(row: int) -> str:
            owners = [(episode, agent) for episode, of in zip(episodes, by_agents, strict=True) for agent in of]
            return f"{self.where(owners[row][0])}, agent {owners[row][1]!r}"

        for row, episode in enumerate(episodes):
            if episode.full_checks:
                episode.full_checks -= 1
                for agent, value in by_agents[row].items():
                    check_observation(space, value, f"{self.where(episode)}, agent {agent!r}")
        alone = blocking and len(values) == 1
        if alone and isinstance(first, np.ndarray) and (first.dtype, first.shape) == (space.dtype, space.shape):
            return [as_columns(space, first[None], 1, where)[0]]
        columns = stacked(space, values, where)
        return list(columns) if isinstance(columns, np.ndarray) else row_values(columns)

    def action(self, episode: ExternalEpisode, action: Any) -> Any:
        """Returns the action in the dtypes of its space."""
        space = self._action_space
        if space is None:
            return copy.deepcopy(action)
        try:
            checked = row_values(spaces.stack(space, [action]))[0]
            whole = space.dtype is None or space.dtype.kind == "f" or np.asarray(action).dtype.kind in "iub"
            if whole and space.contains(checked):
                return checked
        except (TypeError, ValueError, KeyError, IndexError):
            pass
        raise EnvError(
            "A logged action that is not in the action space.",
            where=self.where(episode),
            got=checks.outline(action),
            expected=space,
            fix="log the action as the environment took it",
        )

    def rewards(self, episode: ExternalEpisode, by_agent: Any) -> dict[Hashable, float]:
        """Raises an error for rewards that are no finite numbers."""
        self.by_agent("rewards", by_agent, episode)
        self._are_declared(episode, by_agent)
        return {agent: self._reward(episode, reward) for agent, reward in by_agent.items()}

    def _reward(self, episode: ExternalEpisode, reward: Any) -> float:
        if type(reward) is float and math.isfinite(reward):
            return reward
        return float(checks.reward_column([reward], lambda row: self.where(episode))[0])

    def infos(self, episode: ExternalEpisode, by_agent: Any) -> None:
        """Raises an error for infos that are no dicts."""
        self.by_agent("infos", by_agent, episode)
        self._are_declared(episode, by_agent)
        for info in by_agent.values():
            checks.check_info(info, self.where(episode))
