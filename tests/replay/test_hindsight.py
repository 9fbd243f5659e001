"""Hindsight goals of replayed transitions: goals, rewards and ends by hand."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax.batch import Fragment
from rollax.config import TrainerConfig
from rollax.errors import ConfigError
from rollax.replay.hindsight import NEXT_ACHIEVED, HindsightDraw
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay
from tests.env.goal_worlds import Reach
from tests.env.refused import refused

# The places 0, 1, 2, 3 of a truncated trajectory, and 0, -1, -2 of one that terminated; their goals are 100 and 200.
PLACES = np.array([0, 1, 2, 0, -1], np.float32)
NEXT = np.array([1, 2, 3, -1, -2], np.float32)
GOALS = np.array([100, 100, 100, 200, 200], np.float32)
CONFIG = TrainerConfig(env=Reach, env_config={"space": spaces.Discrete(2)})


def fragment() -> Fragment:
    here, there, goals = PLACES[:, None], NEXT[:, None], GOALS[:, None]
    rows, ends = np.arange(5), [2, 4]
    columns = {
        "obs": {"observation": here, "achieved_goal": here, "desired_goal": goals},
        "actions": rows,
        "rewards": np.full(5, -1, np.float32),
        "terminateds": rows == 4,
        "truncateds": rows == 2,
        "trajectory_id": np.repeat([0, 1], [3, 2]),
        NEXT_ACHIEVED: there,
    }
    after = {"observation": there[ends], "achieved_goal": there[ends], "desired_goal": goals[ends]}
    return Fragment(columns, ends, {"obs": after})


def drawn(k: int, strategy: Any = "future", count: int = 6000, kind: type[UniformReplay] = UniformReplay):
    buffer = kind(100, gamma=0.5, columns=[NEXT_ACHIEVED])
    buffer.add(fragment())
    draw = HindsightDraw(goal_space=spaces.Box(-np.inf, np.inf, (1,)), k=k, strategy=strategy).in_run(CONFIG)
    return buffer.sample(count, np.random.default_rng(0), draw=draw)


def goals_of(batch) -> np.ndarray:
    return batch["obs"]["desired_goal"][:, 0]


@pytest.mark.parametrize("kind", [UniformReplay, PrioritizedReplay])
def test_future_goals_are_those_of_the_row_and_of_later_ones(kind):
    # With k = 10⁹ all rows get another goal. Each of the n places that are left has the probability 1/n.
    #   row   places after it and later rows   reward of each    discount (0: the goal ends the episode)
    #    0         1, 2, 3                       0, -1, -1           0, ½, ½
    #    1            2, 3                          0, -1               0, ½
    #    2               3                              0                  0
    #    3        -1, -2                         0, -1               0, ½
    #    4            -2                             0               0, as it terminated
    batch = drawn(10**9, kind=kind)
    goals = goals_of(batch)
    for row, later in enumerate(([1, 2, 3], [2, 3], [3], [-1, -2], [-2])):
        of_row = batch["actions"] == row
        shares = [np.mean(goals[of_row] == goal) for goal in later]
        np.testing.assert_allclose(shares, np.full(len(later), 1 / len(later)), atol=0.05)
        reached = goals[of_row] == later[0]
        np.testing.assert_array_equal(batch["rewards"][of_row], np.where(reached, 0, -1))
        np.testing.assert_array_equal(batch["discounts"][of_row], np.where(reached, 0, 0.5))
    np.testing.assert_array_equal(batch["new_obs"]["desired_goal"], batch["obs"]["desired_goal"])
    np.testing.assert_array_equal(batch["obs"]["achieved_goal"][:, 0], PLACES[batch["actions"]])
    assert {batch[name].dtype for name in ("rewards", "discounts")} == {np.dtype(np.float32)}
    assert set(drawn(10**9, kind=kind)["indices"]) == set(batch["indices"])


def test_final_goals_are_those_of_the_last_row():
    batch = drawn(10**9, "final")
    np.testing.assert_array_equal(goals_of(batch), np.where(batch["actions"] < 3, 3, -2))
    last = np.isin(batch["actions"], (2, 4))
    np.testing.assert_array_equal(batch["rewards"], np.where(last, 0, -1))
    np.testing.assert_array_equal(batch["discounts"], np.where(last, 0, 0.5))


@pytest.mark.parametrize("k", [1, 4])
def test_k_of_k_plus_one_rows_get_another_goal(k):
    batch = drawn(k)
    own = goals_of(batch) >= 100
    assert own.mean() == pytest.approx(1 / (k + 1), abs=0.02)
    np.testing.assert_array_equal(goals_of(batch)[own], GOALS[batch["actions"][own]])
    assert (batch["rewards"][own] == -1).all()
    np.testing.assert_array_equal(batch["discounts"][own], np.where(batch["actions"][own] == 4, 0, 0.5))


def test_draws_repeat_with_the_seed():
    first, second = drawn(4), drawn(4)
    np.testing.assert_equal(dict(first), dict(second))


def test_an_environment_is_needed():
    refused(ConfigError, HindsightDraw(goal_space=spaces.Discrete(2), k=4).in_run, TrainerConfig(), says="env")
