"""Copies of a `MultiAgentEnv` as a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rollax.core import trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.checks import env_name
from rollax.env.copies import EnvCopies, Resets, close_all
from rollax.env.dict_rows import DictRows
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv, checked_reset, checked_step, spaces_of_agents
from rollax.env.restarting import Restarts
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.errors import MultiAgentError


class MultiAgentRows(DictRows):
    """Rows from results of `MultiAgentEnv`s, by sub-environment."""

    def of_resets(self, results: Mapping[int, Any]) -> Rows:
        pairs = {i: checked_reset(result, f"{self.name}, sub-environment {i}") for i, result in results.items()}
        return self.beginning({i: obs for i, (obs, _) in pairs.items()}, {i: infos for i, (_, infos) in pairs.items()})

    def of_steps(self, results: Mapping[int, Any]) -> Rows:
        where = f"{self.name}, sub-environment "
        return self.outcome_of({i: checked_step(result, f"{where}{i}") for i, result in results.items()})


class AgentActions:
    """Collects the actions for the next step of each sub-environment.

    `name` is for error messages; `acting` returns the agents of a sub-environment that act next.
    """

    def __init__(self, name: str, num_envs: int, acting: Callable[[int], Iterable[Hashable]]) -> None:
        self._name, self._acting = name, acting
        self._waiting: list[set[Hashable] | None] = [None] * num_envs  # None: no episode is running
        self._actions: list[dict[Hashable, Any]] = [{} for _ in range(num_envs)]

    def expect(self, reported: Iterable[int], over: Iterable[int] = ()) -> None:
        """Awaits the actions of `reported` sub-environments, except where the episode is `over`."""
        for index in reported:
            self._waiting[index], self._actions[index] = set(self._acting(index)), {}
        for index in over:
            self._waiting[index], self._actions[index] = None, {}

    def is_running(self, index: int) -> bool:
        return self._waiting[index] is not None

    def put(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        """Stores the actions of rows, see `BaseEnv.send_rows`; `MultiAgentError` unless each agent awaits an action."""
        env_index, agents = rows.env_index, rows.agents or [DEFAULT_AGENT] * len(rows)
        if selection is not None:
            env_index, agents = env_index[selection], [agents[row] for row in selection.tolist()]
        waiting, taken = self._waiting, self._actions
        for index, agent, action in zip(env_index.tolist(), agents, trees.unstack(actions), strict=True):
            try:
                waiting[index].remove(agent)  # type: ignore[union-attr]
            except (KeyError, AttributeError):
                raise MultiAgentError.not_waiting(
                    "an agent",
                    f"{self._name}, sub-environment {index}, agent {agent!r}",
                    "a second action" if agent in taken[index] else "no request",
                    f"one action for each of {sorted(map(str, waiting[index] or ()))}",
                ) from None
            taken[index][agent] = action

    def take(self, index: int) -> dict[Hashable, Any]:
        """The actions for the next step, by agent; `MultiAgentError` without an episode or if an action is missing."""
        waiting = self._waiting[index]
        if waiting or waiting is None:
            raise MultiAgentError(
                "A step lacks the action of an agent that is waiting for one.",
                f"{self._name}, sub-environment {index}",
                f"no action for {sorted(map(str, waiting))}" if waiting else checks.NO_EPISODE,
            ).expected(
                "a reset first, then, before the next poll, an action for each row that acts",
                "send the missing actions" if waiting else "call reset_rows or try_reset after the end of an episode",
            )
        actions, self._actions[index] = self._actions[index], {}
        return actions


class MultiAgentBaseEnv(BaseEnv):
    """Copies of a `MultiAgentEnv`, stepped one after another at each poll."""

    adapts = True

    def __init__(self, copies: EnvCopies) -> None:
        self.envs: list[MultiAgentEnv] = copies.make(may_lack_spaces=True)
        self._resets = Restarts(copies, self.envs) if copies.restart_failed else Resets(self.envs)
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.observation_space, self.observation_spaces = spaces_of_agents(first, "observation_space")
        self.action_space, self.action_spaces = spaces_of_agents(first, "action_space")
        self.name = env_name(first)
        self.possible_agents = getattr(first, "possible_agents", None) or None
        spaces = (self.observation_space, self.possible_agents, self.observation_spaces)
        self._rows = MultiAgentRows(self.name, self.num_envs, *spaces)
        self._actions = AgentActions(self.name, self.num_envs, self._rows.acting)
        self._resting: set[int] = set()

    def poll_rows(self) -> Rows:
        results: dict[int, Any] = {}
        dropped: list[int] = []
        for index, env in enumerate(self.envs):
            if index in self._resting:
                continue
            actions = self._actions.take(index)
            try:
                results[index] = env.step(actions)
            except Exception as error:
                where = f"{self.name}, sub-environment {index}"
                self._resets.failed(index, checks.failed(error, "step()", where, actions), error)
                dropped.append(index)
        rows = self._rows.of_steps(results)
        ended = rows.ended_envs.tolist()
        self._resets.stepped(results, ended)
        rows.dropped_envs = np.array(dropped, np.int64)
        self._actions.expect(results, over=(*ended, *dropped))
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._actions.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        results: dict[int, Any] = {}
        self._resting.difference_update(env_index.tolist())
        for position, index in enumerate(env_index.tolist()):
            where, seed = f"{self.name}, sub-environment {index}", None if seeds is None else seeds[position]
            results[index] = self._resets.reset(index, where, seed)
        rows = self._rows.of_resets(results)
        self._actions.expect(results)
        return rows

    def rest_rows(self, env_index: np.ndarray) -> bool:
        self._resting.update(env_index.tolist())
        return True

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render(self, env_id: int | None = None) -> Any:
        return self.envs[env_id or 0].render()

    def stop(self) -> None:
        close_all(self.envs)
