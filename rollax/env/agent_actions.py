"""Which agents of which sub-environments wait for an action, and the actions that were sent."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from rollax import trees
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.errors import MultiAgentError


class AgentActions:
    """Collects the actions for the next step of each sub-environment; `name` is for error messages."""

    def __init__(self, name: str, num_envs: int) -> None:
        self._name = name
        self._waiting: list[set[Hashable] | None] = [None] * num_envs  # None: no episode is running
        self._actions: list[dict[Hashable, Any]] = [{} for _ in range(num_envs)]

    def expect(self, index: int, agents: Iterable[Hashable] | None) -> None:
        """These agents of a sub-environment, and no others, wait for an action; None if no episode is running."""
        self._waiting[index], self._actions[index] = None if agents is None else set(agents), {}

    def is_running(self, index: int) -> bool:
        """Whether an episode is running."""
        return self._waiting[index] is not None

    def put(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        """Stores the actions of rows, see `BaseEnv.send_rows`; `MultiAgentError` unless each agent waits for one."""
        env_index, agents = rows.env_index, rows.agents or [DEFAULT_AGENT] * len(rows)
        if selection is not None:
            env_index, agents = env_index[selection], [agents[row] for row in selection.tolist()]
        waiting, taken = self._waiting, self._actions
        for index, agent, action in zip(env_index.tolist(), agents, trees.unstack(actions), strict=True):
            try:
                waiting[index].remove(agent)  # type: ignore[union-attr]
            except (KeyError, AttributeError):
                raise MultiAgentError(
                    "An action for an agent that is not waiting for one.",
                    where=f"{self._name}, sub-environment {index}, agent {agent!r}",
                    got="a second action" if agent in taken[index] else "no request",
                    expected=f"one action for each of {sorted(map(str, waiting[index] or ()))}",
                    fix="answer each row that acts once",
                ) from None
            taken[index][agent] = action

    def take(self, index: int) -> dict[Hashable, Any]:
        """The actions for the next step, by agent; `MultiAgentError` without an episode or if an action is missing."""
        waiting = self._waiting[index]
        if waiting or waiting is None:
            raise MultiAgentError(
                "A step without an action for every agent that waits for one.",
                where=f"{self._name}, sub-environment {index}",
                got=f"no action for {sorted(map(str, waiting))}" if waiting else "an episode that is over or not begun",
                expected="a reset first, then an action for each row that acts before the next poll",
                fix="send the actions" if waiting else "call reset_rows or try_reset after the end of an episode",
            )
        actions, self._actions[index] = self._actions[index], {}
        return actions
