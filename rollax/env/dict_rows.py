"""From two-level dicts to rows: which agents are alive, which lane each has, and when a life begins and ends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollax.env import checks
from rollax.env.rows import Rows
from rollax.errors import MultiAgentError

ALL = "__all__"


@dataclass(slots=True)
class _SubEnv:
    """The agents of one sub-environment that are alive, and the lane of each."""

    lanes: dict[Hashable, int] = field(default_factory=dict)
    acting: list[Hashable] = field(default_factory=list)  # the agents of the last obs, in its order
    acting_lanes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(slots=True)
class _Columns:
    """Rows under construction."""

    env_index: list[np.ndarray] = field(default_factory=list)
    lanes: list[np.ndarray] = field(default_factory=list)
    obs: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminateds: list[bool] = field(default_factory=list)
    truncateds: list[bool] = field(default_factory=list)
    starts: list[bool] = field(default_factory=list)
    agents: list[Hashable] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    given: dict[int, Any] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)

    def _where(self, row: int) -> str:
        env_index = np.concatenate(self.env_index)
        return f"sub-environment {env_index[row]}, agent {self.agents[row]!r}"

    def rows(self) -> Rows:
        """The finished rows. Those with an observation, of a life that goes on, not yet acted, wait for an action."""
        terminateds, truncateds = np.array(self.terminateds, bool), np.array(self.truncateds, bool)
        acts = ~(terminateds | truncateds) & np.fromiter((o is not None for o in self.obs), bool, len(self.obs))
        acts[list(self.given)] = False
        empty = np.empty(0, np.int64)
        return Rows(
            np.concatenate(self.env_index) if self.env_index else empty,
            np.concatenate(self.lanes) if self.lanes else empty,
            self.obs,
            checks.reward_column(self.rewards, self._where),
            terminateds,
            truncateds,
            np.array(self.starts, bool),
            acts,
            np.array(self.ended, np.int64),
            self.agents,
            self.infos,
            self.given or None,
        )


class DictRows:
    """Turns the dicts of a poll into `Rows` and keeps the lives between polls.

    Args:
        name: how error messages call the environment.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._sub_envs: dict[int, _SubEnv] = {}
        self._free: list[int] = []
        self._lane_count = 0

    def beginning(self, obs: dict, infos: dict) -> Rows:
        """The rows of freshly reset sub-environments: every agent in `obs` begins a life."""
        columns = _Columns()
        for env_id, by_agent in obs.items():
            if not by_agent:
                raise self._error("A reset without an observation.", env_id, None, {}, "an observation of some agent")
            self._end_episode(env_id)
            agent_infos = infos.get(env_id, {})
            self._add(columns, env_id, list(by_agent), list(by_agent.values()), agent_infos, {}, {}, {})
        return columns.rows()

    def outcome(self, obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict, given: dict) -> Rows:
        """The rows of one poll.

        Raises:
            MultiAgentError: the dicts contradict each other or what went before.
        """
        columns = _Columns()
        none: dict = {}
        for env_id in dict.fromkeys((*obs, *rewards, *terminateds, *truncateds)):
            terms, truncs = terminateds.get(env_id, none), truncateds.get(env_id, none)
            sub_env = self._sub_envs.setdefault(env_id, _SubEnv())
            known = bool(sub_env.lanes)
            if known and (ALL not in terms or ALL not in truncs):
                missing = "terminateds" if ALL not in terms else "truncateds"
                raise self._error(
                    f"{missing} without {ALL!r}.", env_id, None, sorted(map(str, terms)), f"a flag {ALL!r} in both dicts"
                )
            by_agent = obs.get(env_id, none)
            all_over = terms.get(ALL, False) or truncs.get(ALL, False)
            if known and not by_agent and not all_over and not rewards.get(env_id):
                raise self._error(
                    f"Nobody can act: empty obs without {ALL!r}.", env_id, None, {}, f"an observation, or {ALL!r} True"
                )
            agents, values = list(by_agent), list(by_agent.values())
            start = len(columns.agents)
            self._add(
                columns, env_id, agents, values, infos.get(env_id, none), rewards.get(env_id, none), terms, truncs
            )
            for agent, action in given.get(env_id, none).items():
                columns.given[columns.agents.index(agent, start)] = action
            if all_over:
                columns.ended.append(env_id)
                self._end_episode(env_id)
        return columns.rows()

    def _add(
        self, columns: _Columns, env_id: int, agents: list, values: list, infos: dict, rewards: dict, terms: dict, truncs: dict
    ) -> None:
        sub_env = self._sub_envs.setdefault(env_id, _SubEnv())
        # Flags are rarely up: one pass over each dict's values tells whether anything has to be looked at by agent.
        ending = any(terms.values()) or any(truncs.values())
        if agents == sub_env.acting and not ending and list(rewards) == agents:
            self._extend(columns, env_id, agents, values, sub_env.acting_lanes, list(rewards.values()), infos, None, None)
            columns.starts.extend([False] * len(agents))
            return
        known = sub_env.lanes
        starts = [agent not in known for agent in agents]
        late = self._without_obs(env_id, agents, rewards, terms, truncs)
        everyone = [*agents, *late]
        for agent in agents:
            if agent not in known:
                known[agent] = self._take_lane()
        lanes = np.array([known[agent] for agent in everyone], np.int64)
        amounts = [_reward(rewards.get(agent)) for agent in everyone]
        terminated = [bool(terms.get(agent, False) or terms.get(ALL, False)) for agent in everyone]
        truncated = [bool(truncs.get(agent, False) or truncs.get(ALL, False)) for agent in everyone]
        self._extend(
            columns, env_id, everyone, values + [None] * len(late), lanes, amounts, infos, terminated, truncated
        )
        columns.starts.extend(starts + [False] * len(late))
        gone = [agent for agent, a, b in zip(everyone, terminated, truncated, strict=True) if a or b]
        for agent in gone:
            self._free.append(known.pop(agent))
        sub_env.acting = [agent for agent in agents if agent in known]
        sub_env.acting_lanes = np.array([known[agent] for agent in sub_env.acting], np.int64)

    @staticmethod
    def _extend(
        columns: _Columns,
        env_id: int,
        agents: list,
        values: list,
        lanes: np.ndarray,
        rewards: list,
        infos: dict,
        terminated: list[bool] | None,
        truncated: list[bool] | None,
    ) -> None:
        count = len(agents)
        columns.env_index.append(np.full(count, env_id, np.int64))
        columns.lanes.append(lanes)
        columns.obs.extend(values)
        columns.rewards.extend(rewards)
        columns.terminateds.extend(terminated or [False] * count)
        columns.truncateds.extend(truncated or [False] * count)
        columns.agents.extend(agents)
        columns.infos.extend([infos.get(agent, {}) for agent in agents] if infos else [{}] * count)

    def _without_obs(self, env_id: int, agents: list, rewards: dict, terms: dict, truncs: dict) -> list:
        """Agents that are alive and got a reward or an end, but no observation."""
        alive = self._sub_envs[env_id].lanes
        seen = set(agents)
        over = terms.get(ALL, False) or truncs.get(ALL, False)
        late = [
            agent
            for agent in alive
            if agent not in seen and (over or agent in rewards or terms.get(agent, False) or truncs.get(agent, False))
        ]
        for agent, reward in rewards.items():
            if agent not in seen and agent not in alive and reward:
                raise self._error(
                    "A reward for an agent that has ended, or has never been seen.",
                    env_id,
                    agent,
                    reward,
                    "rewards only for agents that are alive",
                )
        return late

    def _end_episode(self, env_id: int) -> None:
        sub_env = self._sub_envs.get(env_id)
        if sub_env is not None:
            self._free.extend(sub_env.lanes.values())
            self._sub_envs[env_id] = _SubEnv()

    def _take_lane(self) -> int:
        if self._free:
            return self._free.pop()
        self._lane_count += 1
        return self._lane_count - 1

    def _error(self, what: str, env_id: int, agent: Hashable | None, got: Any, expected: str) -> MultiAgentError:
        where = f"{self.name}, sub-environment {env_id}" + ("" if agent is None else f", agent {agent!r}")
        return MultiAgentError(
            what, where=where, got=got, expected=expected, fix="correct what the env's step() or reset() returns"
        )


def _reward(value: Any) -> float:
    return 0.0 if value is None else value
