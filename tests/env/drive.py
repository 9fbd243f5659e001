"""Drives any `BaseEnv` through either view, and returns the history of each sub-environment."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollax import BaseEnv
from rollax.env.rows import DEFAULT_AGENT, Rows
from tests.env.worlds import ALL, AsAgents, Clock, Party, action_for


class Event(NamedTuple):
    """What one agent got in one moment; `reward` is None beside the first observation of a trajectory."""

    agent: Any
    obs: tuple | None
    reward: float | None
    terminated: bool
    truncated: bool
    waits: bool
    info: dict


class Moment(NamedTuple):
    """What happened at once in one sub-environment."""

    events: list[Event]
    ended: bool


Trace = list[Moment]


def drive(
    env: BaseEnv, view: str, polls: int, seeds: Sequence[int] | None = None, split: int = 1, at_least: int = 0
) -> list[Trace]:
    """The histories of all sub-environments.

    Args:
        env: the environment.
        view: "rows" or "dicts".
        polls: number of polls.
        seeds: one per sub-environment.
        split: number of parts in which the actions are sent.
        at_least: minimum number of moments in each history, for environments that return when they are ready.
    """
    traces: list[Trace] = [[] for _ in range(env.num_envs)]
    steps = (_drive_rows if view == "rows" else _drive_dicts)(env, traces, seeds, split)
    for poll, _ in enumerate(steps):
        if poll >= polls and min(map(len, traces)) >= at_least:
            break
    return traces


def _drive_rows(env: BaseEnv, traces: list[Trace], seeds: Sequence[int] | None, split: int) -> Iterator[None]:
    """Adds the results of each poll to `traces`; yields before every poll but the first."""
    rows = env.reset_rows(np.arange(env.num_envs), seeds)
    if rows is None:
        rows = env.poll_rows()
    _record_rows(rows, traces)
    while True:
        yield
        acting = np.flatnonzero(rows.acts)
        obs = rows.observations(acting, env.observation_space)
        actions = np.array([action_for(value) for value in obs], np.int64)
        if split == 1 and len(acting) == len(rows):
            env.send_rows(rows, None, actions)
        else:
            for part in range(split):
                if len(acting[part::split]):
                    env.send_rows(rows, acting[part::split], actions[part::split])
        rows = env.poll_rows()
        # The rows of an end are read after the reset that follows, as the sampler does it.
        started = env.reset_rows(rows.ended_envs) if len(rows.ended_envs) else None
        _record_rows(rows, traces)
        if started is not None:
            _record_rows(started, traces)
            rows = Rows.concat(rows, started)


def _record_rows(rows: Rows, traces: list[Trace]) -> None:
    infos, ended = rows.info_list(), set(rows.ended_envs.tolist())
    for index in sorted({*rows.env_index.tolist(), *ended}):
        events = []
        for row in np.flatnonzero(rows.env_index == index).tolist():
            obs = rows.obs[row]
            if rows.starts[row]:
                assert rows.rewards[row] == 0
            events.append(
                Event(
                    rows.agent_of(row),
                    None if obs is None else tuple(obs.tolist()),
                    None if rows.starts[row] else float(rows.rewards[row]),
                    bool(rows.terminateds[row]),
                    bool(rows.truncateds[row]),
                    bool(rows.acts[row]),
                    plain(infos[row]),
                )
            )
        traces[index].append(Moment(sorted(events, key=lambda event: event.agent), index in ended))


def _drive_dicts(env: BaseEnv, traces: list[Trace], seeds: Sequence[int] | None, split: int) -> Iterator[None]:
    """Adds the results of each poll to `traces`; yields before every poll but the first."""
    readers = [DictReader() for _ in range(env.num_envs)]
    waiting: dict[int, dict] = {}

    def record(index: int, *news: dict) -> None:
        moment = readers[index].read(*news)
        traces[index].append(moment)
        waiting[index] = {event.agent: event.obs for event in moment.events if event.waits}

    def poll() -> list[int]:
        waiting.clear()
        obs, rewards, terms, truncs, infos, given = env.poll()
        assert not given
        for index in sorted({*obs, *rewards}):
            record(index, *(part.get(index, {}) for part in (obs, rewards, terms, truncs, infos)))
        return [index for index in terms if terms[index][ALL] or truncs[index][ALL]]

    def reset(index: int | None, seeds: Sequence[int] | None = None) -> bool:
        found = env.try_reset(index) if seeds is None else env.try_reset(index, seeds=seeds)
        for started in found[0] if found else ():
            record(started, found[0][started], {}, {}, {}, found[1][started])
        return found is not None

    if not reset(None, seeds):
        poll()
    while True:
        yield
        answers = [
            (index, agent, action_for(np.array(obs)))
            for index, by_agent in waiting.items()
            for agent, obs in by_agent.items()
        ]
        for part in range(split):
            actions: dict[int, dict] = {}
            for index, agent, action in answers[part::split]:
                actions.setdefault(index, {})[agent] = action
            env.send_actions(actions)
        for index in poll():
            reset(index)


class DictReader:
    """Reads the dicts of one sub-environment: the agents alive, and the trajectories that begin."""

    def __init__(self) -> None:
        self.alive: set = set()

    def read(self, obs: dict, rewards: dict, terms: dict, truncs: dict, infos: dict) -> Moment:
        events, over = [], bool(terms.get(ALL) or truncs.get(ALL))
        for agent in sorted(self.alive | obs.keys()):
            terminated, truncated = terms.get(agent, False), truncs.get(agent, False)
            if not (terminated or truncated):  # "__all__" counts for agents without a flag of their own
                terminated, truncated = terms.get(ALL, False), truncs.get(ALL, False)
            ends, known = terminated or truncated, agent in self.alive
            if (not known and ends) or (known and not (agent in obs or agent in rewards or ends)):
                continue  # it ended as it appeared, or is in none of the dicts
            reward = float(rewards.get(agent, 0.0)) if known else None
            seen = tuple(np.asarray(obs[agent]).tolist()) if agent in obs else None
            waits = agent in obs and not ends
            events.append(Event(agent, seen, reward, terminated, truncated, waits, plain(infos.get(agent, {}))))
            self.alive.add(agent)
            if ends:
                self.alive.discard(agent)
        if over:
            self.alive.clear()
        return Moment(events, over)


def clock_trace(seed: int, moments: int) -> Trace:
    """The history of one clock."""
    return trace_of(AsAgents(Clock(), DEFAULT_AGENT), seed, moments)


def party_trace(seed: int, moments: int) -> Trace:
    """The history of one party."""
    return trace_of(Party(), seed, moments)


def old_clock_trace(seed: int, moments: int) -> Trace:
    """The history of one clock, as far as the old interface can express it."""
    return trace_of(_Old(AsAgents(Clock(), DEFAULT_AGENT)), seed, moments)


def old_party_trace(seed: int, moments: int) -> Trace:
    """The history of one party, as far as the old interface can express it."""
    return trace_of(_Old(Party()), seed, moments)


class _Old:
    """Without infos at a reset; a truncated agent is not terminated."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None) -> tuple:
        return self.env.reset(seed=seed)[0], {}

    def step(self, actions: dict) -> tuple:
        obs, rewards, terms, truncs, infos = self.env.step(actions)
        return obs, rewards, {agent: flag and not truncs[agent] for agent, flag in terms.items()}, truncs, infos


def trace_of(env: Any, seed: int, moments: int) -> Trace:
    """The history of a multi-agent environment in a bare loop."""
    trace: Trace = []
    reader, first_seed = DictReader(), seed
    while len(trace) < moments:
        obs, infos = env.reset(seed=first_seed)
        first_seed = None
        trace.append(reader.read(obs, {}, {}, {}, infos))
        while not trace[-1].ended:
            actions = {event.agent: action_for(np.array(event.obs)) for event in trace[-1].events if event.waits}
            trace.append(reader.read(*env.step(actions)))
    return trace[:moments]


def plain(info: dict) -> dict:
    """An info without NumPy's types, and without the key that the old interface needs."""
    numbers = {key: value for key, value in info.items() if key != "TimeLimit.truncated"}
    return {key: value if isinstance(value, dict) else float(value) for key, value in numbers.items()}
