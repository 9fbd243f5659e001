"""Rows of several agents joined by episode and env step: by hand, against a slow reference, and errors."""

import sys

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollax.batch import Fragment
from rollax.core import trees
from rollax.errors import ConfigError, MultiAgentError
from rollax.rollout.centralized_critic import JointRows
from tests.env.refused import refused

LINE, CHOICE = spaces.Box(-1, 99, (1,), np.float32), spaces.Discrete(10)
POINT, PUSH = spaces.Dict({"at": spaces.Box(-1, 99, (2,), np.float32)}), spaces.Box(-1, 99, (1,), np.float32)


def cut(*trajectories) -> Fragment:
    """A fragment of one policy from trajectories: (episode, agent, [(t, obs, action), ...], next obs)."""
    rows = [(episode, agent, *row) for episode, agent, steps, _ in trajectories for row in steps]
    episodes, agents, t, obs, actions = zip(*rows, strict=True)
    ids = np.empty(len(rows), object)
    ids[:] = agents
    ends = np.cumsum([len(steps) for _, _, steps, _ in trajectories]) - 1
    following = np.array([[after] for _, _, _, after in trajectories], np.float32)
    columns = {
        "eps_id": np.array(episodes),
        "agent_id": ids,
        "t": np.array(t),
        "obs": np.array(obs, np.float32)[:, None],
        "actions": np.array(actions),
    }
    return Fragment(columns, ends, {"obs": following})


def joined(fragment, agents="abc", of=None, policy_spaces=None):
    """The joint rows of one policy, with the others' observations and actions as [N, A - 1]."""
    rows = JointRows(agents, policy_spaces or dict.fromkeys(fragment, (LINE, CHOICE)))
    parts = rows.join(fragment, [of or next(iter(fragment))])[of or next(iter(fragment))]
    return [
        {
            "agent": part["agent"].tolist(),
            "obs": part["obs"][:, 0].tolist(),
            "presence": part["other"]["presence"].tolist(),
            "seen": part["other"]["parts"][0]["obs"][..., 0].tolist(),
            "done": part["other"]["parts"][0]["actions"].tolist(),
        }
        for part in parts
    ]


class TestByHand:
    def test_agents_that_act_at_every_step(self):
        """One policy for a and c, one for b, two episodes with the same steps."""
        fragment = {
            "ac": cut(
                (7, "a", [(0, 10, 0), (1, 11, 1)], 12),
                (7, "c", [(0, 30, 2), (1, 31, 3)], 32),
                (8, "a", [(0, 50, 4)], 51),
            ),
            "b": cut((7, "b", [(0, 20, 5), (1, 21, 6)], 22), (8, "b", [(0, 60, 7)], 61)),
        }
        now, after = joined(fragment)
        # The others of a are b and c, those of c are a and b: the agents that follow in cyclic order.
        assert now == {
            "agent": [0, 0, 2, 2, 0],
            "obs": [10, 11, 30, 31, 50],
            "presence": [[2, 2], [2, 2], [2, 2], [2, 2], [2, 0]],
            "seen": [[20, 30], [21, 31], [10, 20], [11, 21], [60, 0]],
            "done": [[5, 2], [6, 3], [0, 5], [1, 6], [7, 0]],
        }
        # The observations after the last actions; the next actions are unknown, so the last ones replace them.
        assert after == {
            "agent": [0, 2, 0],
            "obs": [12, 32, 51],
            "presence": [[2, 2], [2, 2], [2, 0]],
            "seen": [[22, 32], [12, 22], [61, 0]],
            "done": [[6, 3], [1, 6], [7, 0]],
        }
        (only_b, _) = joined(fragment, of="b")
        assert only_b["seen"] == [[30, 10], [31, 11], [0, 50]]

    def test_agents_that_take_turns(self):
        """a acts at even steps, b at odd ones, c joins at step 3: the latest action at or before the step counts."""
        fragment = {
            "x": cut(
                (1, "a", [(0, 10, 1), (2, 12, 2), (4, 14, 3)], 16),
                (1, "b", [(1, 21, 4), (3, 23, 5)], 25),
                (1, "c", [(3, 33, 6), (5, 35, 7)], 36),
            )
        }
        now, after = joined(fragment)
        assert now["agent"] == [0, 0, 0, 1, 1, 2, 2]
        assert now["presence"] == [[0, 0], [1, 0], [1, 1], [0, 1], [2, 1], [1, 2], [1, 1]]
        assert now["seen"] == [[0, 0], [21, 0], [23, 33], [0, 10], [33, 12], [12, 23], [14, 23]]
        assert now["done"] == [[0, 0], [4, 0], [5, 6], [0, 1], [6, 2], [2, 5], [3, 5]]
        # After a's step 4: b's last action was at 3, followed by 25; c acts at 5. After b's step 3: a acts at 4, and
        # c's latest action is that of step 3. After c's step 5: both have ended, with 16 and 25.
        assert after["seen"] == [[25, 35], [33, 14], [16, 25]]
        assert after["done"] == [[5, 7], [6, 3], [3, 5]]
        assert after["presence"] == [[1, 2], [2, 2], [1, 1]]

    def test_an_agent_that_returns(self):
        fragment = {
            "x": cut(
                (1, "a", [(0, 10, 1), (1, 11, 1), (2, 12, 1), (3, 13, 1)], 14),
                (1, "b", [(0, 20, 2)], 29),
                (1, "b", [(2, 22, 3), (3, 23, 4)], 24),
            )
        }
        now, after = joined(fragment, agents="ab")
        assert now["presence"] == [[2], [1], [2], [2], [2], [2], [2]]
        assert now["seen"][:4] == [[20], [20], [22], [23]]
        assert after["seen"] == [[24], [11], [14]]

    def test_policies_with_different_spaces(self):
        """Each other agent has a part for each kind of policy; the parts of kinds that do not act for it are zeros."""
        driver = Fragment(
            {
                "eps_id": np.array([1, 1]),
                "agent_id": np.array(["d", "d"], object),
                "t": np.array([0, 1]),
                "obs": {"at": np.array([[1, 2], [3, 4]], np.float32)},
                "actions": np.array([[0.5], [0.6]], np.float32),
            },
            [1],
            {"obs": {"at": np.array([[5, 6]], np.float32)}},
        )
        fragment = {"walker": cut((1, "w", [(0, 10, 1), (1, 11, 2)], 12)), "driver": driver}
        rows = JointRows(("d", "w"), {"walker": (LINE, CHOICE), "driver": (POINT, PUSH), "nobody": (LINE, CHOICE)})
        both = rows.join(fragment, ["walker", "driver"])
        walkers, drivers = (both[policy_id][0]["other"]["parts"] for policy_id in ("walker", "driver"))
        np.testing.assert_array_equal(walkers[1]["obs"]["at"], [[[1, 2]], [[3, 4]]])
        np.testing.assert_array_equal(walkers[1]["actions"], np.array([[[0.5]], [[0.6]]], np.float32))
        np.testing.assert_array_equal(drivers[0]["obs"], [[[10]], [[11]]])
        np.testing.assert_array_equal(drivers[0]["actions"], [[1], [2]])
        for empty in (walkers[0], drivers[1]):
            assert all(not leaf.any() for leaf in trees.leaves(empty))
        np.testing.assert_array_equal(both["walker"][1]["other"]["parts"][1]["obs"]["at"], [[[5, 6]]])
        for policy_id, observation_space in (("walker", LINE), ("driver", POINT)):
            assert_fits(both[policy_id], rows.space(observation_space))

    def test_a_kind_of_policy_without_rows_in_the_fragment(self):
        rows = JointRows(("d", "w"), {"walker": (LINE, CHOICE), "driver": (POINT, PUSH)})
        both = rows.join({"walker": cut((1, "w", [(0, 10, 1)], 12))}, ["walker"])
        assert_fits(both["walker"], rows.space(LINE))
        assert both["walker"][0]["other"]["presence"].tolist() == [[0]]

    def test_the_fragment_is_not_changed(self):
        fragment = {"x": cut((1, "a", [(0, 10, 1)], 11), (1, "b", [(1, 20, 2)], 21))}
        before = {name: np.copy(column) for name, column in fragment["x"].items()}
        for part in JointRows("abc", {"x": (LINE, CHOICE)}).join(fragment, ["x"])["x"]:
            for leaf in trees.leaves(part["other"]):
                leaf[:] = 77
        for name, column in before.items():
            np.testing.assert_array_equal(fragment["x"][name], column)
        np.testing.assert_array_equal(fragment["x"].after["obs"], [[11], [21]])


def assert_fits(joint, space: spaces.Dict) -> None:
    """Asserts that a row of the columns, with one of its other agents, is an element of the space."""
    for columns in joint:
        row = trees.index(columns, 0)
        assert space["agent"].contains(int(row["agent"]))
        assert space["obs"].contains(row["obs"])
        other = trees.index(row["other"], 0)
        assert space["other"]["presence"].contains(int(other["presence"]))
        for part, expected in zip(other["parts"], space["other"]["parts"], strict=True):
            assert expected["obs"].contains(part["obs"])
            assert expected["actions"].contains(part["actions"])


@st.composite
def schedules(draw):
    """Trajectories of up to four agents in two episodes, with random policies, that act at random steps."""
    trajectories = []
    for episode in (5, 6):
        for agent in "abcd":
            steps = sorted(draw(st.sets(st.integers(0, 6), max_size=5)))
            if steps:
                trajectories.append((episode, agent, steps, draw(st.sampled_from(["x", "y"]))))
    return trajectories


def slow_reference(trajectories, mine, t, ahead):
    """(presence, observation, action) of each other agent, found by a full search."""
    episode, agent, *_ = mine
    others = [("abcd".index(agent) + 1 + k) % 4 for k in range(3)]
    found = []
    for other in others:
        steps = next((s for e, a, s, _ in trajectories if (e, a) == (episode, "abcd"[other])), [])
        earlier = [step for step in steps if step <= t + ahead]
        if not earlier:
            found.append((0, 0.0, 0))
            continue
        latest = earlier[-1]
        obs = encoded(episode, other, latest)
        if ahead and latest < t + 1 and latest == steps[-1]:
            obs += 1000
        found.append((2 if latest >= t else 1, obs, latest))
    return found


def encoded(episode: int, agent: int, t: int) -> float:
    return 100.0 * (episode - 4) + 10 * agent + t


@given(trajectories=schedules())
def test_against_a_slow_reference(trajectories):
    fragment = {}
    for policy_id in ("x", "y"):
        mine = [
            (e, a, [(t, encoded(e, "abcd".index(a), t), t) for t in s], encoded(e, "abcd".index(a), s[-1]) + 1000)
            for e, a, s, p in trajectories
            if p == policy_id
        ]
        if mine:
            fragment[policy_id] = cut(*mine)
    if not fragment:
        return
    rows = JointRows("abcd", {"x": (LINE, CHOICE), "y": (LINE, CHOICE)})
    for policy_id, (now, after) in rows.join(fragment, list(fragment)).items():
        mine = [trajectory for trajectory in trajectories if trajectory[3] == policy_id]
        for part, expected in (
            (now, [slow_reference(trajectories, trajectory, t, 0) for trajectory in mine for t in trajectory[2]]),
            (after, [slow_reference(trajectories, trajectory, trajectory[2][-1], 1) for trajectory in mine]),
        ):
            other = part["other"]
            columns = (other["presence"], other["parts"][0]["obs"][..., 0], other["parts"][0]["actions"])
            for column, number in zip(columns, range(3), strict=True):
                np.testing.assert_array_equal(column, [[each[number] for each in row] for row in expected])


class TestCost:
    def test_the_number_of_calls_does_not_depend_on_the_number_of_trajectories(self):
        """The numbers of Python calls for 3 episodes and for 300 are equal."""
        calls = []
        for episodes in (3, 300):
            trajectories = [(e, agent, [(0, 1, 2), (1, 3, 4)], 5) for e in range(episodes) for agent in "abc"]
            rows, fragment = JointRows("abc", {"x": (LINE, CHOICE)}), {"x": cut(*trajectories)}
            counted = 0

            def count(frame, event, argument):
                nonlocal counted
                counted += event == "call"

            sys.setprofile(count)
            try:
                rows.join(fragment, ["x"])
            finally:
                sys.setprofile(None)
            calls.append(counted)
        assert calls[0] == calls[1] > 0


class TestRefused:
    @pytest.mark.parametrize("agents", [(), ("only",)])
    def test_fewer_than_two_agents(self, agents):
        refused(ConfigError, JointRows(agents, {"x": (LINE, CHOICE)}).space, LINE, says="possible_agents")

    def test_an_undeclared_agent(self):
        fragment = {"x": cut((1, "a", [(0, 10, 1)], 11), (1, "z", [(0, 20, 2)], 21))}
        with pytest.raises(MultiAgentError, match=r"got: +z(.|\n)*'a', 'b'"):
            JointRows("ab", {"x": (LINE, CHOICE)}).join(fragment, ["x"])
