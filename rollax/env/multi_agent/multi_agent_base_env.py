"""Copies of a `MultiAgentEnv` as a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, env_name
from rollax.env.dict_rows import DictRows
from rollax.env.multi_agent.agent_spaces import spaces_of_agents
from rollax.env.multi_agent.multi_agent_env import AgentDict, MultiAgentEnv, checked_reset, checked_step
from rollax.env.restarting import Restarts
from rollax.env.rows import Rows
from rollax.errors import EnvError, MultiAgentError


def multi_agent_base_env(copies: EnvCopies) -> BaseEnv:
    """The `BaseEnv` of copies of a `MultiAgentEnv`."""
    return MultiAgentBaseEnv(copies.make(may_lack_spaces=True), Restarts.of(copies))


class MultiAgentBaseEnv(BaseEnv):
    """Copies of a `MultiAgentEnv`, stepped one after another at each poll.

    Args:
        envs: the copies.
        restarts: makes copies anew that have failed; None: failures are raised.
    Attributes:
        observation_spaces: of each agent, by its id; None where the environment does not say. So are `action_spaces`.
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
        self._actions: list[AgentDict] = [{} for _ in self.envs]
        self._waiting: list[set[Hashable]] = [set() for _ in self.envs]
        self._running = [False] * self.num_envs

    def poll_rows(self) -> Rows:
        steps: dict[int, tuple[AgentDict, ...]] = {}
        dropped: list[int] = []
        for index, env in enumerate(self.envs):
            if not self._running[index]:
                raise EnvError(
                    "A step before the reset or after the end of an episode.",
                    where=f"{self.name}, sub-environment {index}",
                    got="an episode that is over or not begun",
                    expected="reset_rows or try_reset first",
                    fix="reset the sub-environment",
                )
            actions, self._actions[index] = self._actions[index], {}
            if actions.keys() != self._waiting[index]:
                missing = self._waiting[index] - actions.keys()
                raise MultiAgentError(
                    "An agent was not given an action.",
                    where=f"{self.name}, sub-environment {index}",
                    got=f"no action for {sorted(map(str, missing))}",
                    expected="an action for every agent in the last obs whose trajectory goes on",
                    fix="answer every row that acts before the next poll",
                )
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
            self._running[index] = False
        self._note_waiting(steps)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        values, agents = trees.unstack(actions), rows.agents
        assert agents is not None
        answered = sum(map(len, self._actions))
        if selection is not None:
            agents = [agents[row] for row in selection.tolist()]
        index_of = (rows.env_index if selection is None else rows.env_index[selection]).tolist()
        waiting, taken = self._waiting, self._actions
        for index, agent, value in zip(index_of, agents, values, strict=True):
            if agent not in waiting[index]:
                raise MultiAgentError(
                    "An action for an agent that is not waiting for one.",
                    where=f"{self.name}, sub-environment {index}",
                    got=[str(agent)],
                    expected=f"actions for {sorted(map(str, waiting[index]))}",
                    fix="answer only the rows that act",
                )
            taken[index][agent] = value
        if sum(map(len, self._actions)) != answered + len(agents):
            raise MultiAgentError(
                "An agent was answered twice.",
                where=self.name,
                got=f"a second action for one of {sorted(map(str, set(agents)))}",
                expected="one action for each row that acts",
                fix="send each agent's action once between two polls",
            )

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        obs, infos = {}, {}
        for position, index in enumerate(env_index.tolist()):
            where, seed = f"{self.name}, sub-environment {index}", None if seeds is None else seeds[position]
            result = self._restarts.reset(self.envs, index, where, seed, lambda env, seed: env.reset(seed=seed))
            obs[index], infos[index] = checked_reset(result, where)
            self._running[index], self._actions[index] = True, {}
        rows = self._rows.beginning(obs, infos)
        self._note_waiting(obs)
        return rows

    def _note_waiting(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._waiting[index] = set(self._rows.acting(index))

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render(self, env_id: int | None = None) -> Any:
        return self.envs[env_id or 0].render()

    def stop(self) -> None:
        for env in self.envs:
            env.close()
