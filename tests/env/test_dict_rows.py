"""`DictRows` alone. `tests/rollout/test_sampler_properties.py` has random schedules: agents appear, leave, return, and
are rewarded at odd times."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from rollax import EnvError
from rollax.env.dict_rows import DictRows

ALL = "__all__"
AGENTS = ("a", "b", 3)


@pytest.mark.long
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


def test_agents_keep_their_slots_and_a_reset_of_all_gives_those_of_the_beginning():
    """Sums by slot, as of bonuses, go on with the same agent, and in a restored run as in the one that was saved."""
    rows_of, agents = DictRows("Slots", 2), {"a": 1, "b": 2}
    assert rows_of.beginning({0: agents, 1: agents}, {}).slots.tolist() == [0, 1, 2, 3]
    rows_of.outcome({1: agents}, {1: {}}, {1: {ALL: True}}, {1: {ALL: False}}, {}, {})
    assert rows_of.beginning({1: agents}, {}).slots.tolist() == [2, 3]
    rows_of.outcome({0: {"a": 1}}, {0: {}}, {0: {"a": True, ALL: False}}, {0: {ALL: False}}, {}, {})
    rows_of.outcome({1: agents}, {1: {}}, {1: {ALL: True}}, {1: {ALL: False}}, {}, {})
    assert rows_of.beginning({1: agents}, {}).slots.tolist() == [2, 3]
    assert rows_of.outcome({0: agents}, {0: {}}, {0: {ALL: False}}, {0: {ALL: False}}, {}, {}).slots.tolist() == [0, 1]
    rows_of.outcome({0: agents}, {0: {}}, {0: {ALL: True}}, {0: {ALL: False}}, {}, {})
    rows_of.beginning({0: {"a": 1}}, {})
    assert rows_of.beginning({0: agents, 1: agents}, {}).slots.tolist() == [0, 1, 2, 3]


def test_agents_that_appear_in_episodes_keep_their_slots_where_all_end_together():
    rows_of, both = DictRows("Lockstep", 2), {"a": 1, "b": 2}
    on, over = {ALL: False}, {ALL: True}

    def begin():
        return rows_of.beginning({0: {"a": 1}, 1: {"a": 1}}, {}).slots.tolist()

    def appear(env_id):
        return rows_of.outcome({env_id: both}, {}, {env_id: on}, {env_id: on}, {}, {}).slots.tolist()

    assert [begin(), appear(0), appear(1)] == [[0, 1], [0, 2], [1, 3]]
    rows_of.outcome({0: both, 1: both}, {}, {0: over, 1: over}, {0: on, 1: on}, {}, {})
    assert [begin(), appear(1), appear(0)] == [[0, 1], [1, 3], [0, 2]]
    assert [begin(), appear(1), appear(0)] == [[0, 1], [1, 2], [0, 3]]  # episodes are cut: as at the very beginning


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
    rows_of = DictRows("Spaces", 1, observation_spaces={"a": Discrete(3), "b": Box(0, 1, (2,), np.float32)})
    rows_of.beginning({0: {"a": 2, "b": np.ones(2, np.float32), "unknown": "anything"}}, {})
    with pytest.raises(EnvError, match=r"wrong shape(?s:.*)agent 'b'"):
        rows_of.outcome({0: {"b": np.ones(3, np.float32)}}, {}, {0: {ALL: False}}, {0: {ALL: False}}, {}, {})
