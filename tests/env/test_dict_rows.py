"""`DictRows` under random schedules: agents appear, leave, return, and are rewarded at odd times."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from rollax import EnvError
from rollax.env.dict_rows import DictRows
from rollax.env.rows import Rows

ALL = "__all__"
AGENTS = ("a", "b", 3)


@dataclass
class Trajectory:
    """One trajectory as it happened in the world, and as the rows report it."""

    env_id: int
    agent: Hashable
    given: float = 0.0
    reported: float = 0.0
    offered: int = 0
    answered: int = 0
    slot: int | None = None
    over: bool = False


@dataclass
class World:
    """Sub-environments with random polls, which record their trajectories beside the dicts that they return."""

    draw: Any
    num_envs: int
    living: dict[tuple[int, Hashable], Trajectory] = field(default_factory=dict)
    past: list[Trajectory] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    number: int = 0

    def first(self, env_id: int) -> dict:
        agents = self.draw(st.lists(st.sampled_from(AGENTS), min_size=1, unique=True))
        self.running.add(env_id)
        return {agent: self.observe(env_id, agent) for agent in agents}

    def observe(self, env_id: int, agent: Hashable) -> int:
        """Observations are consecutive numbers."""
        self.number += 1
        trajectory = self.living.setdefault((env_id, agent), Trajectory(env_id, agent))
        trajectory.offered += 1
        return self.number

    def step(self, env_id: int) -> tuple[dict, dict, dict, dict]:
        obs, rewards, flags = {}, {}, ({}, {})
        over = self.draw(st.sampled_from(["", "", "", "T", "C", "TC"]))
        for agent in self.draw(st.permutations(AGENTS)):
            trajectory = self.living.get((env_id, agent))
            does = self.draw(
                st.sampled_from(
                    ["", "r", "o", "or", "or", "T", "rC", "oT", "orTC"] if trajectory else ["", "", "o", "oC"]
                )
            )
            ends = bool(over) or "T" in does or "C" in does
            if "r" in does:
                rewards[agent] = self.draw(st.integers(-3, 3)) / 4
                trajectory.given += rewards[agent]
            if "o" in does:
                self.number += 1
                obs[agent] = self.number
            if "T" in does or "C" in does:
                flags[0][agent], flags[1][agent] = "T" in does, "C" in does
            if trajectory and ends:
                self.end(trajectory)
            elif "o" in does and not ends:
                self.living.setdefault((env_id, agent), Trajectory(env_id, agent)).offered += 1
        if over:
            self.running.discard(env_id)
        for kind, flag in zip("TC", flags, strict=True):
            flag[ALL] = kind in over
        return obs, rewards, *flags

    def end(self, trajectory: Trajectory) -> None:
        trajectory.over = True
        self.past.append(self.living.pop((trajectory.env_id, trajectory.agent)))

    def silent(self, env_id: int, step: tuple) -> bool:
        """Whether the step has no content, so that neither a step nor a poll follows."""
        obs, rewards, terms, truncs = step
        return not (obs or rewards or any(terms.values()) or any(truncs.values()))


class Reader:
    """Reads rows as the sampler does: a slot has one trajectory until a flag ends it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trajectories: dict[int, Trajectory] = {}
        self.seen: set[int] = set()

    def read(self, rows: Rows, expected_end: set[int]) -> None:
        world = self.world
        assert set(rows.ended_envs.tolist()) == expected_end
        for row, slot in enumerate(rows.slots.tolist()):
            key = (int(rows.env_index[row]), rows.agent_of(row))
            over = bool(rows.terminateds[row] or rows.truncateds[row])
            if rows.starts[row]:
                assert slot not in self.trajectories, "a slot of two trajectories at once"
                assert rows.rewards[row] == 0
                assert not over
                self.trajectories[slot] = world.living[key]
                assert self.trajectories[slot].slot is None, "a trajectory that begins twice"
                self.trajectories[slot].slot = slot
            trajectory = self.trajectories[slot]
            assert (trajectory.env_id, trajectory.agent) == key
            trajectory.reported += float(rows.rewards[row])
            assert rows.acts[row] == (rows.obs[row] is not None and not over)
            if rows.obs[row] is not None:
                assert rows.obs[row] not in self.seen
                self.seen.add(rows.obs[row])
            trajectory.answered += int(rows.acts[row])
            assert over == trajectory.over
            if over:
                del self.trajectories[slot]
        assert len(self.trajectories) == len(world.living)


@given(st.data())
def test_trajectories_slots_rewards_and_answers(data):
    """Rewards are neither lost nor doubled, a trajectory has one slot, and each observation waits exactly once."""
    num_envs = data.draw(st.integers(1, 3))
    world = World(data.draw, num_envs)
    dict_rows, reader = DictRows("World", num_envs), Reader(world)
    most_alive = 0
    for _ in range(data.draw(st.integers(1, 12))):
        stopped = [env_id for env_id in range(num_envs) if env_id not in world.running]
        again = [env_id for env_id in stopped if data.draw(st.booleans())]
        if again:
            reader.read(dict_rows.beginning({env_id: world.first(env_id) for env_id in again}, {}), set())
        ready = [env_id for env_id in sorted(world.running) if data.draw(st.integers(0, 3))]
        steps = {env_id: world.step(env_id) for env_id in ready}
        steps = {env_id: step for env_id, step in steps.items() if not world.silent(env_id, step)}
        parts = [{env_id: step[i] for env_id, step in steps.items()} for i in range(4)]
        ended = {env_id for env_id in steps if env_id not in world.running}
        reader.read(dict_rows.outcome(*parts, {}, {}), ended)
        most_alive = max(most_alive, len(world.living))
    for trajectory in (*world.past, *world.living.values()):
        assert trajectory.reported == trajectory.given
        assert trajectory.answered == trajectory.offered
        assert trajectory.slot is not None
    # Slots are reused: there are never more of them than parallel trajectories, including those that just ended.
    assert dict_rows._slot_count <= num_envs * len(AGENTS)
    slots = [trajectory.slot for trajectory in world.living.values()]
    assert len(set(slots)) == len(slots)


@given(st.data())
def test_an_env_that_restarts_itself_and_one_that_is_dropped(data):
    """First observations come in polls; if the env ignores a reset, running agents begin new trajectories."""
    rows_of, alive = DictRows("Alone", 1), set()
    for _ in range(data.draw(st.integers(1, 10))):
        if data.draw(st.integers(0, 4)) == 0:
            rows_of.drop(0)
            rows_of.drop(0)
            before, alive = alive, set()
        else:
            before = set()
        agents = data.draw(st.lists(st.sampled_from(AGENTS), min_size=1, unique=True))
        late = [agent for agent in (*alive, *before) if agent not in agents and data.draw(st.booleans())]
        over = data.draw(st.integers(0, 4)) == 0
        rewards = dict.fromkeys(late, 1.0) | {agent: 2.0 for agent in agents if agent in alive}
        rows = rows_of.outcome({0: dict.fromkeys(agents, 7)}, {0: rewards}, {0: {ALL: over}}, {0: {ALL: False}}, {}, {})
        starting = set() if over else set(agents) - alive
        assert {rows.agent_of(row) for row in np.flatnonzero(rows.starts)} == starting
        assert rows.rewards.sum() == 2 * len(set(agents) & alive) + len(set(late) & alive)
        assert rows.ended_envs.tolist() == ([0] if over and alive else [])
        alive = set() if over else alive | set(agents)
        assert len(alive) <= rows_of._slot_count <= len(AGENTS)


def test_given_actions_do_not_wait():
    rows_of = DictRows("Logs", 2)
    obs = {0: {"a": 1, "b": 2}, 1: {"a": 3}}
    off = {0: {ALL: False}, 1: {ALL: False}}
    rows = rows_of.outcome(obs, {0: {"a": None}, 1: {}}, off, off, {}, {0: {"b": 9}, 1: {"a": 8}})
    assert rows.given_actions == {1: 9, 2: 8}
    assert rows.acts.tolist() == [True, False, False]
    assert rows.starts.all()


def test_infos_are_in_the_rows_of_their_agents():
    rows_of = DictRows("Infos", 1)
    rows_of.beginning({0: {"a": 1, "b": 2}}, {})
    off = {0: {ALL: False}}
    rows = rows_of.outcome({0: {"b": 3}}, {0: {"a": 1.0}}, off, off, {0: {"b": {"x": 1}, "z": {"y": 2}}}, {})
    assert list(zip(rows.agents or (), rows.info_list(), strict=True)) == [("b", {"x": 1}), ("a", {})]


@pytest.mark.parametrize(("ends", "own"), [("TC", "CT"), ("CT", "TC")])
def test_an_agents_own_flag_overrides_that_of_all(ends, own):
    """Truncated by its own flag in an episode that terminates for all, and the other way round."""
    rows_of = DictRows("Flags", 1)
    rows_of.beginning({0: {"own": 1, "late": 2, "none": 3, "both": 4}}, {})
    flags = {ends[0]: {ALL: True, "none": False}, ends[1]: {ALL: False, "own": True, "late": True}}
    for kind in "TC":
        flags[kind]["both"] = True
    obs = {"own": 5, "none": 6, "both": 7, "new": 8}
    rows = rows_of.outcome({0: obs}, {0: {"late": 1.0}}, {0: flags["T"]}, {0: flags["C"]}, {}, {})
    reported = {
        agent: ("T" if terminated else "") + ("C" if truncated else "")
        for agent, terminated, truncated in zip(rows.agents or (), rows.terminateds, rows.truncateds, strict=True)
    }
    assert reported == {"own": own[0], "late": own[0], "none": ends[0], "both": "TC"}
    assert rows.ended_envs.tolist() == [0]


def test_agents_are_checked_by_their_own_spaces():
    spaces = {"a": Discrete(3), "b": Box(0, 1, (2,), np.float32)}
    rows_of = DictRows("Spaces", 1, observation_spaces=spaces)
    rows_of.beginning({0: {"a": 2, "b": np.ones(2, np.float32), "unknown": "anything"}}, {})
    with pytest.raises(EnvError, match=r"wrong shape(?s:.*)agent 'b'"):
        rows_of.outcome({0: {"b": np.ones(3, np.float32)}}, {}, {0: {ALL: False}}, {0: {ALL: False}}, {}, {})
