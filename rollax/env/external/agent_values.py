"""`AgentValues`: the observations and logged actions of an external environment's agents, checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from rollax.core import spaces, trees
from rollax.core.space_codec import Where, check_finite, check_masks, mask_starts
from rollax.env import checks
from rollax.env.checks import as_columns, check_observation, stacked
from rollax.errors import EnvError

_REMEMBERED = 10_000


class AgentValues:
    """Converts values to the dtypes of their spaces, in the calling threads.

    Args:
        observation_space, action_space: of every agent; None if the policies define it.
    """

    def __init__(self, observation_space: Space | None, action_space: Space | None) -> None:
        self._of_all = _Spaces(observation_space, action_space)
        self._of_agent: Callable[[Hashable], _Spaces] | None = None  # for agents whose spaces differ

    def complete(self, policies: Mapping[str, Any], policy_of: Any) -> None:
        """Takes the missing spaces from the policies.

        Args:
            policies: policy id -> policy.
            policy_of: `(agent id, episode)` -> policy id; None if there is only one policy.
        """
        if self._of_all.observation is not None and self._of_all.action is not None:
            return
        pairs = {policy_id: (policy.observation_space, policy.action_space) for policy_id, policy in policies.items()}
        first, *others = pairs.values()
        if all(spaces.same_space(*both) for pair in others for both in zip(first, pair, strict=True)):
            self._of_all = _Spaces(*first)
        elif not policy_of.takes_episode:  # the sampler's episodes are unknown here
            kinds = {policy_id: _Spaces(*pair) for policy_id, pair in pairs.items()}
            self._of_agent = lru_cache(_REMEMBERED)(lambda agent: kinds[policy_of(agent, None)])

    def _spaces(self, agent: Hashable) -> _Spaces:
        return self._of_all if self._of_agent is None else self._of_agent(agent)

    def check_in_full(self, agent: Hashable, value: Any, where: str) -> None:
        space = self._spaces(agent).observation
        if space is not None:
            check_observation(space, value, where)

    def observations(self, by_agents: Sequence[Mapping[Any, Any]], where: Where, *, awaited: bool) -> list[Any]:
        """The observations of all dicts as one list, in the dtypes of their spaces.

        Args:
            by_agents: dicts by agent id.
            where: row -> the location of an observation in an error message.
            awaited: whether the observations wait for actions. If so, each mask must allow an action, and values
                are not copied, because the caller does not change them until it has the actions.
        """
        values = [value for by_agent in by_agents for value in by_agent.values()]
        if self._of_agent is None:
            return self._of_all.converted(values, where, awaited=awaited)
        agents = [agent for by_agent in by_agents for agent in by_agent]
        return [
            self._of_agent(agent).converted([value], lambda _, row=row: where(row), awaited=awaited)[0]
            for row, (agent, value) in enumerate(zip(agents, values, strict=True))
        ]

    def action(self, agent: Hashable, action: Any, where: str) -> Any:
        """A logged action in the dtypes of its space."""
        space = self._spaces(agent).action
        if space is None:
            return copy.deepcopy(action)
        try:
            checked = trees.rows(spaces.stack(space, [action]))[0]
            whole = space.dtype is None or space.dtype.kind == "f" or np.asarray(action).dtype.kind in "iub"
            if whole and space.contains(checked):
                return checked
        except (TypeError, ValueError, KeyError, IndexError):
            pass
        raise EnvError.not_in_space("The logged action", where, checks.outline(action), space).fix(
            "log the action as the environment took it"
        )


class _Spaces:
    """Observation space and action space of an agent; None where values are not checked here."""

    def __init__(self, observation: Space | None, action: Space | None) -> None:
        self.observation, self.action = observation, action
        # Without bounds, `contains` accepts infinite values, so these parts are checked separately.
        parts = [] if observation is None else spaces.leaves(observation)
        self._unbounded = [(path, part) for path, part in parts if isinstance(part, Box) and not part.is_bounded()]
        self._mask_starts = mask_starts(observation, action)

    def converted(self, values: list[Any], where: Where, *, awaited: bool) -> list[Any]:
        space = self.observation
        if space is None:
            return values if awaited else copy.deepcopy(values)
        first = values[0] if values else None
        alone = awaited and len(values) == 1
        if alone and isinstance(first, np.ndarray) and (first.dtype, first.shape) == (space.dtype, space.shape):
            columns = as_columns(space, first[None], 1, where)
        else:
            columns = stacked(space, values, where)
        if values:
            for path, part in self._unbounded:
                check_finite(part, path, spaces.at(columns, path), where)
            if awaited and self._mask_starts is not None:
                check_masks(columns, self._mask_starts, where)
        return trees.rows(columns)
