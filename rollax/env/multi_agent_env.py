"""`MultiAgentEnv`: one environment, many agents, dicts by agent id; and its way to a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv, EnvDict, action_values
from rollax.env.copies import env_name
from rollax.env.dict_rows import ALL, DictRows
from rollax.env.rows import Rows
from rollax.errors import EnvError, MultiAgentError

AgentDict = dict[Hashable, Any]
_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")


class MultiAgentEnv:
    """Abstract: only agents in the returned `obs` act next; agents appear, leave, return, and take turns.

    A reward may arrive for an agent that is not acting; it counts to the agent's last step until a flag ends that
    life. An id that ended and shows up again in `obs` begins a new life.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    """Of every agent; None where the policies name their own."""
    possible_agents: Sequence[Hashable] | None = None
    """Every id that may ever appear; None leaves it open."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        """`(obs, infos)` by agent id."""
        raise NotImplementedError

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """`(obs, rewards, terminateds, truncateds, infos)` by agent id; both flag dicts carry `"__all__"`."""
        raise NotImplementedError

    def render(self) -> Any:
        """A frame, or None where it cannot be drawn."""
        return None

    def close(self) -> None:
        """Releases what the environment holds."""


class MultiAgentBaseEnv(BaseEnv):
    """Copies of a `MultiAgentEnv`, stepped one after another at each poll.

    Args:
        envs: the copies.
    """

    def __init__(self, envs: Sequence[MultiAgentEnv]) -> None:
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.observation_space = getattr(first, "observation_space", None)
        self.action_space = getattr(first, "action_space", None)
        self.name = env_name(first)
        self._rows = DictRows(
            self.name, self.num_envs, self.observation_space, getattr(first, "possible_agents", None) or None
        )
        self._actions: list[AgentDict] = [{} for _ in self.envs]
        self._waiting: list[set[Hashable]] = [set() for _ in self.envs]
        self._running = [False] * self.num_envs

    def poll_rows(self) -> Rows:
        parts: tuple[EnvDict, ...] = ({}, {}, {}, {}, {})
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
            missing = self._waiting[index] - actions.keys()
            if missing:
                raise MultiAgentError(
                    "An agent was not given an action.",
                    where=f"{self.name}, sub-environment {index}",
                    got=f"no action for {sorted(map(str, missing))}",
                    expected="an action for every agent in the last obs whose life goes on",
                    fix="answer every row that acts before the next poll",
                )
            for part, by_agent in zip(parts, self._step(index, env, actions), strict=True):
                part[index] = by_agent
        rows = self._rows.outcome(*parts, {})
        for index in rows.ended_envs.tolist():
            self._running[index] = False
        self._note_waiting(rows, range(self.num_envs))
        return rows

    def _step(self, index: int, env: MultiAgentEnv, actions: AgentDict) -> tuple:
        where = f"{self.name}, sub-environment {index}"
        try:
            result = env.step(actions)
        except Exception as error:
            raise checks.failed(error, "step()", where, actions) from error
        if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(part, dict) for part in result)):
            checks.check_step(result, where)
            for name, part in zip(_PARTS, result, strict=True):
                if not isinstance(part, dict):
                    raise MultiAgentError(
                        f"{name} that are no dict.",
                        where=where,
                        got=checks.outline(part),
                        expected="a dict by agent id",
                        fix="return {} where there is nothing to say",
                    )
        obs, _, terminateds, truncateds, _ = result
        # Unlike other kinds of environment, this one does nothing of its own accord: nobody acts, nothing happens.
        if not obs and terminateds.get(ALL) is False and truncateds.get(ALL) is False:
            raise MultiAgentError(
                f"Nobody can act: empty obs without {ALL!r}.",
                where=where,
                got={},
                expected=f"an observation of whoever acts next, or {ALL!r} True in a flag dict",
                fix=f"step on inside of step() until somebody can act, or set {ALL!r} when the last agent has ended",
            )
        return result

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        values, agents = action_values(actions), rows.agents
        assert agents is not None
        answered = sum(map(len, self._actions))
        if selection is not None:
            agents = [agents[row] for row in selection.tolist()]
        index_of = (rows.env_index if selection is None else rows.env_index[selection]).tolist()
        if self.num_envs == 1:
            self._actions[0].update(zip(agents, values, strict=True))
        else:
            for index, agent, value in zip(index_of, agents, values, strict=True):
                self._actions[index][agent] = value
        for index in set(index_of):
            stray = self._actions[index].keys() - self._waiting[index]
            if stray:
                raise MultiAgentError(
                    "An action for an agent that is not waiting for one.",
                    where=f"{self.name}, sub-environment {index}",
                    got=sorted(map(str, stray)),
                    expected=f"actions for {sorted(map(str, self._waiting[index]))}",
                    fix="answer only the rows that act",
                )
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
            where = f"{self.name}, sub-environment {index}"
            try:
                result = self.envs[index].reset(seed=None if seeds is None else seeds[position])
            except Exception as error:
                raise checks.failed(error, "reset()", where) from error
            obs[index], infos[index] = checks.check_reset(result, f"{where}, reset()")
            if not isinstance(obs[index], dict):
                raise MultiAgentError(
                    "obs that are no dict.",
                    where=f"{where}, reset()",
                    got=checks.outline(obs[index]),
                    expected="a dict by agent id",
                    fix="return an observation for each agent that acts first, by its id",
                )
            self._running[index], self._actions[index] = True, {}
        rows = self._rows.beginning(obs, infos)
        self._note_waiting(rows, env_index.tolist())
        return rows

    def _note_waiting(self, rows: Rows, indices: Sequence[int]) -> None:
        assert rows.agents is not None
        if self.num_envs == 1 and rows.acts.all():
            self._waiting[0] = set(rows.agents)
            return
        for index in indices:
            self._waiting[index] = set()
        for index, agent, acts in zip(rows.env_index.tolist(), rows.agents, rows.acts.tolist(), strict=True):
            if acts:
                self._waiting[index].add(agent)

    def get_sub_environments(self) -> list[Any]:
        return [getattr(env, "as_written", env) for env in self.envs]

    def try_render(self, env_id: int | None = None) -> Any:
        return self.envs[env_id or 0].render()

    def stop(self) -> None:
        for env in self.envs:
            env.close()


__all__ = ["ALL", "MultiAgentBaseEnv", "MultiAgentEnv"]
