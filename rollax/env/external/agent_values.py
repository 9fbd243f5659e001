"""`AgentValues`: the observations and logged actions of an external environment's agents, checked."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax import spaces
from rollax.env import checks
from rollax.env.base_env import row_values
from rollax.env.checks import Where
from rollax.env.observations import as_columns, check_observation, stacked
from rollax.errors import EnvError

Spaces = tuple[Space | None, Space | None]
"""Observation space and action space; None where values are not checked here."""

_REMEMBERED = 10_000


class AgentValues:
    """Converts values to the dtypes of their spaces, in the threads that give them.

    Args:
        observation_space, action_space: of every agent; None if the policies define it.
    """

    def __init__(self, observation_space: Space | None, action_space: Space | None) -> None:
        self._of_all: Spaces = observation_space, action_space
        self._of_agent: Callable[[Hashable], Spaces] | None = None  # of agents whose spaces differ

    def complete(self, policies: Mapping[str, Any], policy_of: Any) -> None:
        """Takes the spaces that the environment leaves out from the policies.

        Args:
            policies: policy id -> policy.
            policy_of: `(agent id, episode)` -> policy id; None where there is one policy.
        """
        if None not in self._of_all:
            return
        pairs = {policy_id: (policy.observation_space, policy.action_space) for policy_id, policy in policies.items()}
        first, *others = pairs.values()
        if all(spaces.same_space(*both) for pair in others for both in zip(first, pair, strict=True)):
            self._of_all = first
        elif not policy_of.takes_episode:  # the sampler's episodes are unknown here
            self._of_agent = functools.lru_cache(_REMEMBERED)(lambda agent: pairs[policy_of(agent, None)])

    def _spaces(self, agent: Hashable) -> Spaces:
        return self._of_all if self._of_agent is None else self._of_agent(agent)

    def check_in_full(self, agent: Hashable, value: Any, where: str) -> None:
        """Checks one observation in full; see `check_observation`."""
        space, _ = self._spaces(agent)
        if space is not None:
            check_observation(space, value, where)

    def observations(self, by_agents: Sequence[Mapping[Any, Any]], where: Where, *, copies: bool) -> list[Any]:
        """The observations of all dicts in a row, in the dtypes of their spaces.

        Args:
            by_agents: dicts by agent id.
            where: row -> the location of an observation in an error message.
            copies: the caller may write into what was given.
        """
        values = [value for by_agent in by_agents for value in by_agent.values()]
        if self._of_agent is None:
            return _converted(self._of_all[0], values, where, copies=copies)
        agents = [agent for by_agent in by_agents for agent in by_agent]
        return [
            _converted(self._of_agent(agent)[0], [value], lambda _, row=row: where(row), copies=copies)[0]
            for row, (agent, value) in enumerate(zip(agents, values, strict=True))
        ]

    def action(self, agent: Hashable, action: Any, where: str) -> Any:
        """A logged action in the dtypes of its space."""
        _, space = self._spaces(agent)
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
            where=where,
            got=checks.outline(action),
            expected=space,
            fix="log the action as the environment took it",
        )


def _converted(space: Space | None, values: list[Any], where: Where, *, copies: bool) -> list[Any]:
    if space is None:
        return copy.deepcopy(values) if copies else values
    first = values[0] if values else None
    alone = not copies and len(values) == 1
    if alone and isinstance(first, np.ndarray) and (first.dtype, first.shape) == (space.dtype, space.shape):
        return [as_columns(space, first[None], 1, where)[0]]
    columns = stacked(space, values, where)
    return list(columns) if isinstance(columns, np.ndarray) else row_values(columns)
