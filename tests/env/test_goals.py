"""Rewards and terminations for columns of goals, from functions for one goal or for many."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax.env.goals import GoalFunctions
from rollax.env.registry import EnvContext, env_creator
from rollax.errors import EnvError, NonFiniteError
from tests.env.goal_worlds import Reach
from tests.env.refused import refused

GOAL = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACHIEVED = np.array([[0, 0, 0], [0, 1, 0], [2, 2, 2]], np.float32)
DESIRED = np.array([[0, 0, 0], [0, 0, 0], [2, 2, 5]], np.float32)


def functions(**methods: Any) -> GoalFunctions:
    """The functions of an environment with these methods."""

    def make(context):
        env = Reach({"space": spaces.Discrete(2)})
        vars(env).update({"compute_reward": None, "compute_terminated": None, **methods})
        return env

    return GoalFunctions(make, EnvContext(), GOAL)


def distance(achieved, desired, info):
    return -np.linalg.norm(achieved - desired, axis=-1)


def distance_of_one(achieved, desired, info):
    assert achieved.shape == (3,)
    return -float(np.linalg.norm(achieved - desired))


def norm_of_all(achieved, desired, info):  # for columns, one number
    return -float(np.linalg.norm(achieved - desired))


def equal_in_the_first_axis(achieved, desired, info):  # for columns, one flag per element of a goal
    return (achieved == desired).all(axis=0)


def last_of_all(achieved, desired, info):  # for columns, as many numbers as rows, but other ones
    return -np.abs(achieved - desired)[..., -1] if achieved.ndim == 1 else np.zeros(len(achieved))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (distance, [0, -1, -3]),
        (distance_of_one, [0, -1, -3]),
        (norm_of_all, [0, -1, -3]),
        (equal_in_the_first_axis, [1, 0, 0]),
        (last_of_all, [0, 0, -3]),
    ],
)
def test_each_row_has_the_result_of_its_goals(function, expected):
    found = functions(compute_reward=function).rewards(ACHIEVED, DESIRED)
    np.testing.assert_allclose(found, expected)
    assert found.dtype == np.float32
    reached = functions(compute_reward=distance, compute_terminated=lambda *goals: function(*goals) == 0)
    np.testing.assert_array_equal(reached.terminated(ACHIEVED, DESIRED), np.equal(expected, 0))


def test_a_function_of_columns_is_called_once():
    calls = []

    def counted(achieved, desired, info):
        calls.append(achieved.shape)
        return distance(achieved, desired, info)

    made = functions(compute_reward=counted)
    calls.clear()
    made.rewards(ACHIEVED, DESIRED)
    assert calls == [(3, 3)]


def test_without_a_function_of_terminations_no_goal_terminates():
    class Endless(Reach):
        compute_terminated: Any = property()

    made = GoalFunctions(lambda context: Endless({"space": spaces.Discrete(2)}), EnvContext(), GOAL)
    assert made.terminated(ACHIEVED, ACHIEVED).tolist() == [False] * 3


def test_the_function_of_a_wrapper_comes_first():
    class Doubled(gym.Wrapper):
        def compute_reward(self, achieved, desired, info):
            return 2 * distance(achieved, desired, info)

    made = GoalFunctions(lambda context: Doubled(Reach({"space": spaces.Discrete(2)})), EnvContext(), GOAL)
    np.testing.assert_allclose(made.rewards(ACHIEVED, DESIRED), [0, -2, -6])
    assert made.terminated(ACHIEVED, DESIRED).tolist() == [True, False, False]


def test_goals_may_have_parts():
    space = spaces.Dict({"hand": spaces.Discrete(3), "arm": spaces.Box(0, 1, (2,))})

    class Parts(Reach):
        def compute_reward(self, achieved_goal, desired_goal, info):
            return float(achieved_goal["hand"] == desired_goal["hand"])

        def compute_terminated(self, achieved_goal, desired_goal, info):
            return (achieved_goal["arm"] == desired_goal["arm"]).all(axis=-1)

    made = GoalFunctions(Parts, EnvContext({"space": spaces.Discrete(2)}), space)
    achieved = {"hand": np.array([0, 1]), "arm": np.zeros((2, 2), np.float32)}
    desired = {"hand": np.array([0, 0]), "arm": np.array([[0, 1], [0, 0]], np.float32)}
    assert made.rewards(achieved, desired).tolist() == [1, 0]
    assert made.terminated(achieved, desired).tolist() == [False, True]


@pytest.mark.parametrize("env", [Reach, "Reach-v0"])
def test_a_copy_in_another_process_makes_its_own_environment(env):
    gym.register("Reach-v0", f"{Reach.__module__}:Reach")
    actions = {"space": spaces.Discrete(2)}
    context = EnvContext({"context": actions} if env == "Reach-v0" else actions)
    stored = pickle.dumps(GoalFunctions(env_creator(env), context, spaces.Box(-1, 1, (1,))))
    del gym.registry["Reach-v0"]  # as in another process
    found = pickle.loads(stored)  # noqa: S301
    gym.registry.pop("Reach-v0", None)
    assert found.rewards(ACHIEVED[:, :1], ACHIEVED[::-1, :1]).tolist() == [-1, 0, -1]


def raising(achieved, desired, info):
    return info["speed"]


@pytest.mark.parametrize(
    "compute_reward", [None, raising, lambda *goals: "far", lambda *goals: np.zeros(7), lambda *goals: None]
)
def test_a_function_without_one_number_per_goal_is_refused(compute_reward):
    refused(EnvError, functions, compute_reward=compute_reward, says="compute_reward")


def test_rewards_are_finite():
    made = functions(compute_reward=lambda achieved, desired, info: np.where(achieved[..., 0] == 2, np.nan, 0.0))
    refused(NonFiniteError, made.rewards, ACHIEVED, DESIRED, says="compute_reward")
