"""Rows from dicts by sub-environment and agent: living agents, their slots, and starts and ends of trajectories."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from rollax.env import agent_checks, checks
from rollax.env.agent_checks import IdlePolls
from rollax.env.checks import check_observation
from rollax.env.rows import ALL, Rows
from rollax.errors import EnvError, MultiAgentError

_COMMON = "__common__"
"""A key of infos that belongs to no agent."""
_NONE: dict = {}


Flags = tuple[list[bool], list[bool], list[bool]]
"""The columns terminated, truncated and starting of some rows."""


@dataclass(slots=True)
class RowBuilder:
    """Collects the rows of one poll, sub-environment by sub-environment."""

    name: str
    env_index: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    obs: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    flags: list[tuple[int, Flags]] = field(default_factory=list)  # each with the index of its first row
    agents: list[Hashable] = field(default_factory=list)
    infos: list[dict] = field(default_factory=list)
    given: dict[int, Any] = field(default_factory=dict)
    given_logps: dict[int, float] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    unobserved: int = 0  # the number of rows of agents that are not in obs

    def extend(
        self,
        env_id: int,
        agents: list,
        values: list,
        slots: list[int],
        rewards: list,
        infos: dict,
        flags: Flags | None = None,
    ) -> None:
        """Appends rows of one sub-environment; `flags` is None if all are False."""
        count = len(agents)
        if flags is not None:
            self.flags.append((len(self.agents), flags))
        self.env_index.extend([env_id] * count)
        self.slots.extend(slots)
        self.obs.extend(values)
        self.rewards.extend(rewards)
        self.agents.extend(agents)
        self.infos.extend([infos.get(agent, _NONE) for agent in agents] if infos else [_NONE] * count)

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {self.env_index[row]}, agent {self.agents[row]!r}"

    def rows(self) -> Rows:
        """The rows. A row waits for an action if it has an observation and its trajectory has not ended."""
        flags = np.zeros((3, len(self.agents)), bool)
        for start, columns in self.flags:
            flags[:, start : start + len(columns[0])] = columns
        terminateds, truncateds, starts = flags
        acts = ~(terminateds | truncateds)
        without_obs = sum(map(is_, self.obs, repeat(None)))
        if without_obs != self.unobserved:
            row = next(row for row, value in enumerate(self.obs) if value is None)
            raise EnvError("The observation of an agent is None.", self._where(row), None).expected(
                "an observation, which requests an action", "omit agents that do not act from obs"
            )
        if without_obs:
            acts &= np.array([value is not None for value in self.obs], bool)
        acts[list(self.given)] = False
        return Rows(
            np.array(self.env_index, np.int64),
            np.array(self.slots, np.int64),
            self.obs,
            checks.reward_column(self.rewards, self._where),
            terminateds,
            truncateds,
            starts,
            acts,
            np.array(self.ended, np.int64),
            self.agents,
            self.infos,
            self.given or None,
            resumed_envs=np.array(self.resumed, np.int64),
            name=self.name,
            given_logps=self.given_logps or None,
        )


def flags_of(agent: Hashable, terminateds: Mapping, truncateds: Mapping) -> tuple[bool, bool]:
    """`(terminated, truncated)`: an agent's own flags if one of them is True, else the flags of `"__all__"`."""
    terminated, truncated = terminateds.get(agent, False), truncateds.get(agent, False)
    if not (terminated or truncated):
        terminated, truncated = terminateds.get(ALL, False), truncateds.get(ALL, False)
    return bool(terminated), bool(truncated)


@dataclass(slots=True)
class _SubEnv:
    """The agents of one sub-environment that are alive, and the slot of each."""

    running: bool = False  # an episode has begun; it continues even after all its agents have ended
    slots: dict[Hashable, int] = field(default_factory=dict)
    acting: list[Hashable] = field(default_factory=list)  # the agents of the last obs that can act, in the order of obs
    acting_slots: list[int] = field(default_factory=list)
    dropped: frozenset[Hashable] = frozenset()  # agents of a dropped episode that the environment continues


class _Step(NamedTuple):
    """What one poll returned for one sub-environment, by agent."""

    obs: dict
    rewards: dict
    terms: dict
    truncs: dict
    infos: dict
    given: dict = _NONE

    def ends(self, agent: Hashable) -> bool:
        return any(flags_of(agent, self.terms, self.truncs))


class DictRows:
    """Turns the dicts of a poll into `Rows` and keeps the trajectories between polls.

    Ids of sub-environments count from 0. `agents` are all ids that may appear, None for any. `observation_spaces` are
    for agents with different spaces.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        observation_space: Space | None = None,
        agents: Iterable[Hashable] | None = None,
        observation_spaces: Mapping[Hashable, Space] | None = None,
    ) -> None:
        self.name = name
        self._space, self._spaces = observation_space, observation_spaces or {}
        self._declared = None if agents is None else frozenset(agents)
        self._keys = None if self._declared is None else self._declared | {ALL}
        self._sub_envs = [_SubEnv() for _ in range(num_envs)]
        self._checks = checks.ObservationChecks(num_envs)
        self._idle = IdlePolls(name)
        self._free: list[list[int]] = [[] for _ in range(num_envs)]
        """The free slots of each sub-environment, as heaps, so that its agents get the same slots in each episode."""
        self._slot_count = 0

    def beginning(self, obs: dict, infos: dict) -> Rows:
        """The rows of sub-environments after a reset: every agent in `obs` begins a trajectory."""
        rows = RowBuilder(self.name)
        cut = any(self._sub_envs[env_id].running for env_id in obs)
        for env_id in obs:
            self._end_episode(env_id)
        if cut and len(obs) == len(self._sub_envs):  # after an exact save, slots are given as in the restored run
            self._free, self._slot_count = [[] for _ in self._sub_envs], 0
        for env_id, by_agent in obs.items():
            if not by_agent:
                raise self._error(
                    "The reset returned no observation.", env_id, None, {}, "an observation of some agent"
                )
            step = _Step(by_agent, _NONE, _NONE, _NONE, infos.get(env_id, _NONE))
            if step.infos:
                self._check_infos(env_id, step.infos)
            if env_id in self._checks.first_episodes:
                self._check_in_full(env_id, step, "reset()")
            self._add(rows, env_id, step, ending=False)
        return rows.rows()

    def acting(self, env_id: int) -> list[Hashable]:
        """The agents that can act: they are in the last obs of the sub-environment, and their trajectories go on."""
        return self._sub_envs[env_id].acting

    def drop(self, env_id: int) -> None:
        """Drops the running episode. If the environment continues it, the agents that act next begin trajectories."""
        alive = self._sub_envs[env_id].dropped | self._sub_envs[env_id].slots.keys()
        self._end_episode(env_id)
        self._sub_envs[env_id].dropped = frozenset(alive)

    def outcome(self, obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict, given: dict) -> Rows:
        """The rows of one poll; `EnvError` for dicts that are invalid or contradict each other or an earlier poll."""
        parts = (obs, rewards, terminateds, truncateds, infos, given)
        reported = dict.fromkeys((*obs, *rewards, *terminateds, *truncateds))
        return self.outcome_of({env_id: [part.get(env_id, _NONE) for part in parts] for env_id in reported})

    def outcome_of(self, steps: Mapping[int, Sequence[dict]]) -> Rows:
        """As `outcome`; `steps` maps a sub-environment to the dicts of its step and, if any, of its given actions."""
        rows = RowBuilder(self.name)
        for env_id, parts in steps.items():
            self._add_env(rows, env_id, _Step(*parts))
        self._checks.polled(rows.ended)
        return rows.rows()

    def _add_env(self, rows: RowBuilder, env_id: int, step: _Step) -> None:
        if env_id not in range(len(self._sub_envs)):
            expected = f"ids below num_envs, {len(self._sub_envs)}"
            raise self._error("Unknown sub-environment.", env_id, None, env_id, expected)
        sub_env, first_row = self._sub_envs[env_id], len(rows.agents)
        # Flags are rarely True, so one pass over the values decides whether single agents must be checked.
        all_over = ending = False
        if not (_is_down(step.terms) and _is_down(step.truncs)):
            self._check_flags(env_id, step)
            all_over = bool(step.terms.get(ALL, False) or step.truncs.get(ALL, False))
            ending = any(step.terms.values()) or any(step.truncs.values())
        if sub_env.running and not (step.obs or step.rewards or ending):
            expected = f"an observation, or {ALL!r} True"
            raise self._error(f"No agent can act: obs is empty, and {ALL!r} is not True.", env_id, None, {}, expected)
        if step.infos:
            self._check_infos(env_id, step.infos)
        if env_id in self._checks.first_episodes:
            self._check_in_full(env_id, step, "step()")
        self._add(rows, env_id, step, ending)
        if step.given:
            self._add_given(rows, env_id, step, first_row)
        if not (sub_env.acting or (all_over and sub_env.running)):
            self._idle.idle(env_id, {*step.obs, *step.rewards, *step.terms, *step.truncs}, sub_env.slots)
        elif self._idle.counts:
            self._idle.acting(env_id)
        if all_over:
            if sub_env.running:
                rows.ended.append(env_id)
            self._end_episode(env_id)

    def _add_given(self, rows: RowBuilder, env_id: int, step: _Step, first_row: int) -> None:
        """Stores the actions that agents have taken already; this sub-environment's rows begin at `first_row`."""
        for agent, action in step.given.items():
            if agent not in step.obs:
                raise self._error("An off-policy action has no observation.", env_id, agent, action, "its obs too")
            if agent in self._sub_envs[env_id].slots:
                rows.given[rows.agents.index(agent, first_row)] = action

    def _add(self, rows: RowBuilder, env_id: int, step: _Step, ending: bool) -> None:
        obs, rewards, infos = step.obs, step.rewards, step.infos
        sub_env, agents = self._sub_envs[env_id], list(obs)
        known = sub_env.slots
        if not ending and list(rewards) == agents and known.keys() >= rewards.keys():
            if agents != sub_env.acting:
                sub_env.acting, sub_env.acting_slots = agents, [known[agent] for agent in agents]
            rows.extend(env_id, agents, list(obs.values()), sub_env.acting_slots, list(rewards.values()), infos)
            return
        starting = obs.keys() - known.keys()
        if starting:
            self._check_new(env_id, starting - sub_env.dropped, rewards)
            # An agent that ends in its first observation has no trajectory: it neither acts nor learns.
            agents = [agent for agent in agents if agent not in starting or not step.ends(agent)]
        self._check_rewarded(env_id, step)
        flagged = known if ending else rewards
        late = [a for a in flagged if a in known and a not in obs and (a in rewards or step.ends(a))]
        for agent in agents:
            if agent not in known:
                known[agent] = self._take_slot(env_id)
        sub_env.running = sub_env.running or bool(agents)
        everyone = agents + late
        slots = [known[agent] for agent in everyone]
        amounts = [0.0 if agent in starting else rewards.get(agent, 0.0) for agent in everyone]
        values = [obs[agent] for agent in agents] + [None] * len(late)
        rows.unobserved += len(late)
        flags = self._flags(step, everyone, starting) if ending or starting else None
        rows.extend(env_id, everyone, values, slots, amounts, infos, flags)
        if ending and flags is not None:
            for agent, terminated, truncated in zip(everyone, *flags[:2], strict=True):
                if terminated or truncated:
                    heappush(self._free[env_id], known.pop(agent))
            agents = [agent for agent in agents if agent in known]
        sub_env.acting, sub_env.acting_slots = agents, [known[agent] for agent in agents]

    @staticmethod
    def _flags(step: _Step, agents: list[Hashable], starting: Set[Hashable]) -> Flags:
        ended = [flags_of(agent, step.terms, step.truncs) for agent in agents]
        return [end[0] for end in ended], [end[1] for end in ended], [agent in starting for agent in agents]

    def _check_flags(self, env_id: int, step: _Step) -> None:
        running = self._sub_envs[env_id].running
        for name, flags in (("terminateds", step.terms), ("truncateds", step.truncs)):
            if not checks.BOOLEANS.issuperset(map(type, flags.values())):
                agent, flag = next((a, flag) for a, flag in flags.items() if type(flag) not in checks.BOOLEANS)
                where = f"{self.name}, sub-environment {env_id}, agent {agent!r}"
                raise checks.not_boolean(name.removesuffix("s"), flag, where)
            self._check_keys(env_id, name, flags)
            if running and ALL not in flags:
                expected = f"a flag {ALL!r} in both flag dicts"
                raise self._error(f"{name} has no {ALL!r}.", env_id, None, sorted(map(str, flags)), expected)

    def _check_in_full(self, env_id: int, step: _Step, call: str) -> None:
        self._check_declared(env_id, step.obs)
        for agent, value in step.obs.items():
            where = f"{self.name}, sub-environment {env_id}, agent {agent!r}, {call}"
            space = self._spaces.get(agent) if self._space is None else self._space
            if space is not None:
                check_observation(space, value, where)

    def _check_new(self, env_id: int, starting: Set[Hashable], rewards: dict) -> None:
        self._check_declared(env_id, starting)
        for agent in starting:
            if not is_nothing(rewards.get(agent)):
                checks.warn_once(
                    "first reward",
                    self.name,
                    f"{self.name}, sub-environment {env_id}, agent {agent!r}: a reward of {rewards[agent]} with the "
                    "first observation of a trajectory belongs to no action and is not counted. Logged once.",
                )

    def _check_infos(self, env_id: int, infos: dict) -> None:
        self._check_keys(env_id, "infos", infos.keys() - {_COMMON} if _COMMON in infos else infos)

        def where(row: int) -> str:
            return f"{self.name}, sub-environment {env_id}, agent {[*infos][row]!r}"

        checks.check_infos(infos.values(), where)

    def _check_keys(self, env_id: int, name: str, part: Iterable[Hashable]) -> None:
        if self._keys is not None and not self._keys.issuperset(part):
            raise agent_checks.undeclared(part, self._keys, f"{self.name}, sub-environment {env_id}", f"in {name} ")

    def _check_declared(self, env_id: int, agents: Iterable[Hashable]) -> None:
        if self._declared is not None and not self._declared.issuperset(agents):
            raise agent_checks.undeclared(agents, self._declared, f"{self.name}, sub-environment {env_id}")

    def _check_rewarded(self, env_id: int, step: _Step) -> None:
        sub_env = self._sub_envs[env_id]
        for agent, reward in step.rewards.items():
            known = agent in step.obs or agent in sub_env.slots or agent in sub_env.dropped
            if not known and not is_nothing(reward):
                raise self._error(
                    "An agent has a reward, but has ended or has never been observed.",
                    env_id,
                    agent,
                    reward,
                    "rewards only for agents that are alive",
                )
        self._check_keys(env_id, "rewards", step.rewards)

    def _end_episode(self, env_id: int) -> None:
        ended, self._sub_envs[env_id] = self._sub_envs[env_id], _SubEnv()
        for slot in ended.slots.values():  # done last, so that an interrupt cannot free them twice
            heappush(self._free[env_id], slot)

    def _take_slot(self, env_id: int) -> int:
        if self._free[env_id]:
            return heappop(self._free[env_id])
        self._slot_count += 1
        return self._slot_count - 1

    def _error(self, what: str, env_id: int, agent: Hashable | None, got: Any, expected: str) -> MultiAgentError:
        where = f"{self.name}, sub-environment {env_id}" + ("" if agent is None else f", agent {agent!r}")
        return MultiAgentError(what, where, got).expected(expected, "correct what the env's step() or reset() returns")


def _is_down(flags: dict) -> bool:
    """Whether `"__all__": False` is the only entry."""
    return len(flags) == 1 and flags.get(ALL) is False


def is_nothing(reward: Any) -> bool:
    """Whether a reward is zero or missing."""
    return reward is None or (_is_number(reward) and bool(reward == 0))


def _is_number(reward: Any) -> bool:
    return isinstance(reward, int | float) or getattr(reward, "shape", None) == ()  # a scalar of NumPy or JAX
