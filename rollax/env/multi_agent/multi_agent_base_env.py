"""Copies of a `MultiAgentEnv` as a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env import checks
from rollax.env.agent_actions import AgentActions
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, env_name
from rollax.env.dict_rows import DictRows
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv, checked_reset, checked_step, spaces_of_agents
from rollax.env.restarting import Restarts
from rollax.env.rows import Rows


class MultiAgentRows(DictRows):
    """Rows from what the methods of `MultiAgentEnv`s returned, by sub-environment."""

    def of_resets(self, results: Mapping[int, Any]) -> Rows:
        """The rows of sub-environments that were reset."""
        pairs = {i: checked_reset(result, f"{self.name}, sub-environment {i}") for i, result in results.items()}
        return self.beginning({i: obs for i, (obs, _) in pairs.items()}, {i: infos for i, (_, infos) in pairs.items()})

    def of_steps(self, results: Mapping[int, Any]) -> Rows:
        """The rows of sub-environments that were stepped."""
        where = f"{self.name}, sub-environment "
        return self.outcome_of({i: checked_step(result, f"{where}{i}") for i, result in results.items()})


class MultiAgentBaseEnv(BaseEnv):
    """Copies of a `MultiAgentEnv`, stepped one after another at each poll."""

    def __init__(self, copies: EnvCopies) -> None:
        self.envs: list[MultiAgentEnv] = copies.make(may_lack_spaces=True)
        self._restarts = Restarts(copies)
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.observation_space, self.observation_spaces = spaces_of_agents(first, "observation_space")
        self.action_space, self.action_spaces = spaces_of_agents(first, "action_space")
        self.name = env_name(first)
        self.possible_agents = getattr(first, "possible_agents", None) or None
        spaces = (self.observation_space, self.possible_agents, self.observation_spaces)
        self._rows = MultiAgentRows(self.name, self.num_envs, *spaces)
        self._actions = AgentActions(self.name, self.num_envs)

    def poll_rows(self) -> Rows:
        results: dict[int, Any] = {}
        dropped: list[int] = []
        for index, env in enumerate(self.envs):
            actions = self._actions.take(index)
            try:
                results[index] = env.step(actions)
            except Exception as error:
                where = f"{self.name}, sub-environment {index}"
                self._restarts.failed(index, checks.failed(error, "step()", where, actions), error)
                dropped.append(index)
        rows = self._rows.of_steps(results)
        ended = rows.ended_envs.tolist()
        self._restarts.failures.stepped(results, ended)
        rows.dropped_envs = np.array(dropped, np.int64)
        for index in results:
            self._actions.expect(index, self._rows.acting(index))
        for index in (*ended, *dropped):
            self._actions.expect(index, None)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._actions.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        results: dict[int, Any] = {}
        for position, index in enumerate(env_index.tolist()):
            where, seed = f"{self.name}, sub-environment {index}", None if seeds is None else seeds[position]
            results[index] = self._restarts.reset(self.envs, index, where, seed)
        rows = self._rows.of_resets(results)
        for index in results:
            self._actions.expect(index, self._rows.acting(index))
        return rows

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render(self, env_id: int | None = None) -> Any:
        return self.envs[env_id or 0].render()

    def stop(self) -> None:
        for env in self.envs:
            env.close()
