"""Copies of a `MultiAgentEnv` as a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env import checks
from rollax.env.agent_actions import AgentActions
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, env_name
from rollax.env.dict_rows import DictRows
from rollax.env.multi_agent.agent_spaces import spaces_of_agents
from rollax.env.multi_agent.multi_agent_env import AgentDict, MultiAgentEnv, checked_reset, checked_step
from rollax.env.restarting import Restarts
from rollax.env.rows import Rows


def multi_agent_base_env(copies: EnvCopies) -> BaseEnv:
    """The `BaseEnv` of copies of a `MultiAgentEnv`."""
    return MultiAgentBaseEnv(copies.make(may_lack_spaces=True), Restarts.of(copies))


class MultiAgentBaseEnv(BaseEnv):
    """Copies of a `MultiAgentEnv`, stepped one after another at each poll.

    Args:
        envs: the copies.
        restarts: recreates copies that have failed; None raises failures.
    Attributes:
        observation_spaces, action_spaces: by agent id; None if the environment has none.
    """

    def __init__(self, envs: Sequence[MultiAgentEnv], restarts: Restarts | None = None) -> None:
        self.envs = list(envs)
        self._restarts = restarts or Restarts()
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.observation_space, self.observation_spaces = spaces_of_agents(first, "observation_space")
        self.action_space, self.action_spaces = spaces_of_agents(first, "action_space")
        self.name = env_name(first)
        self.possible_agents = getattr(first, "possible_agents", None) or None
        self._rows = DictRows(
            self.name, self.num_envs, self.observation_space, self.possible_agents, self.observation_spaces
        )
        self._actions = AgentActions(self.name, self.num_envs)

    def poll_rows(self) -> Rows:
        steps: dict[int, tuple[AgentDict, ...]] = {}
        dropped: list[int] = []
        for index, env in enumerate(self.envs):
            actions = self._actions.take(index)
            try:
                result = env.step(actions)
            except Exception as error:
                where = f"{self.name}, sub-environment {index}"
                self._restarts.failed(index, checks.failed(error, "step()", where, actions), error)
                dropped.append(index)
                continue
            steps[index] = checked_step(result, f"{self.name}, sub-environment {index}")
        rows = self._rows.outcome_of(steps)
        self._restarts.failures.stepped(steps, rows.ended_envs.tolist())
        rows.dropped_envs = np.array(dropped, np.int64)
        for index in (*rows.ended_envs.tolist(), *dropped):
            self._actions.end(index)
        self._request(steps)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._actions.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        obs, infos = {}, {}
        for position, index in enumerate(env_index.tolist()):
            where, seed = f"{self.name}, sub-environment {index}", None if seeds is None else seeds[position]
            result = self._restarts.reset(self.envs, index, where, seed, lambda env, seed: env.reset(seed=seed))
            obs[index], infos[index] = checked_reset(result, where)
            self._actions.begin(index)
        rows = self._rows.beginning(obs, infos)
        self._request(obs)
        return rows

    def _request(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._actions.request(index, self._rows.acting(index))

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render(self, env_id: int | None = None) -> Any:
        return self.envs[env_id or 0].render()

    def stop(self) -> None:
        for env in self.envs:
            env.close()
