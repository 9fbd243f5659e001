"""Stop conditions, and the remaining time."""

import math

import numpy as np
import pytest

from rollax import ConfigError
from rollax.runs.stopping import Improvement, TimeLeft, checked_stop, missed_goal, reached


def result(iteration, **changes):
    """The result of an iteration of 1000 steps; the first one takes 10 s, the others 2 s."""
    time_total = 10.0 + 2 * (iteration - 1)
    base = {"training_iteration": iteration, "timesteps_total": 1000 * iteration, "time_total_s": time_total}
    return {**base, "episode_reward_mean": None, **changes}


@pytest.mark.parametrize(
    ("conditions", "changes", "ended_by"),
    [
        ({"timesteps_total": 1000}, {}, "timesteps_total"),
        ({"timesteps_total": 1001}, {}, None),
        ({"training_iteration": 1}, {}, "training_iteration"),
        ({"time_total_s": 9.5}, {}, "time_total_s"),
        ({"episode_reward_mean": -5}, {}, None),
        ({"episode_reward_mean": -5}, {"episode_reward_mean": math.nan}, None),
        ({"episode_reward_mean": -5}, {"episode_reward_mean": -5.0}, "episode_reward_mean"),
        ({"evaluation_reward_mean": 3}, {"episode_reward_mean": 9.0}, None),
        ({"evaluation_reward_mean": 3}, {"evaluation": {"episode_reward_mean": None}}, None),
        ({"evaluation_reward_mean": 3}, {"evaluation": {"episode_reward_mean": 3.5}}, "evaluation_reward_mean"),
        # A goal that is reached in the last allowed iteration is reached.
        ({"episode_reward_mean": 0, "timesteps_total": 1000}, {"episode_reward_mean": 1.0}, "episode_reward_mean"),
        ({}, {}, None),
        ({}, {"done": True}, "done"),
        ({}, {"done": np.bool_(True)}, "done"),
        ({"timesteps_total": 1001}, {"done": False}, None),
        ({"episode_reward_mean": 0}, {"episode_reward_mean": 1.0, "done": True}, "episode_reward_mean"),
    ],
)
def test_reached(conditions, changes, ended_by):
    assert reached(checked_stop(conditions, "stop"), result(1, **changes)) == ended_by


def test_missed_goal():
    both = {"episode_reward_mean": 5, "training_iteration": 1}
    for stop in (both, dict(reversed(both.items()))):  # a goal that is reached together with a limit is not missed
        assert missed_goal(stop, result(1))
        assert not missed_goal(stop, result(1, episode_reward_mean=5.0))
    assert not missed_goal({"training_iteration": 1}, result(1))


def test_time_left_leaves_out_the_compilation():
    left = TimeLeft({"timesteps_total": 10_000})
    # After one iteration its own rate is used: 9000 steps at 100/s.
    assert left.estimate(result(1)) == 90.0
    # Then 1000 steps take 2 s: 8000 left are 16 s, 7000 are 14 s.
    assert left.estimate(result(2)) == 16.0
    assert left.estimate(result(3)) == 14.0


def test_time_left_is_until_the_nearest_limit():
    left = TimeLeft({"timesteps_total": 10_000, "training_iteration": 4, "time_total_s": 100})
    left.estimate(result(1))
    assert left.estimate(result(2)) == 4.0
    assert left.estimate(result(5)) == 0.0


def test_time_left_uses_the_recent_rate():
    left = TimeLeft({"timesteps_total": 100_000}, window=2)
    for iteration in range(1, 5):
        left.estimate(result(iteration))
    # Iterations 5 and 6 take 4 s each instead of 2; 94 iterations are left.
    left.estimate(result(5, time_total_s=20.0))
    assert left.estimate(result(6, time_total_s=24.0)) == 94 * 4.0


def test_no_estimate_without_a_limit():
    assert TimeLeft({"episode_reward_mean": 1}).estimate(result(1)) is None
    assert TimeLeft({"timesteps_total": 5000}).estimate({"timesteps_total": 5}) is None


def test_numpy_numbers():
    given = {"timesteps_total": np.int64(60), "episode_reward_mean": np.float32(4)}
    assert checked_stop(given, "stop") == {"timesteps_total": 60, "episode_reward_mean": 4}
    assert {type(value) for value in checked_stop(given, "stop").values()} == {int, float}
    with pytest.raises(ConfigError, match=r"not a dict(.|\n)*got: +None"):
        checked_stop(None, "stop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (1000, r"not a dict(.|\n)*write \{'timesteps_total': 1000\}"),
        ({"timesteps_total": "1000"}, r"not a number(.|\n)*'1000' \(str\)(.|\n)*without quotation marks"),
        ({"timesteps_total": 10**400}, r"finite number"),
        ({"time_total_s": [3]}, r"not a number(.|\n)*\[3\] \(list\)"),
        ({"total_timesteps": 3}, r"Unknown stop condition(.|\n)*in rollax it is 'timesteps_total'"),
        ({"env_runners/episode_return_mean": 3}, r"in rollax it is 'episode_reward_mean'"),
        ({"training_iterations": 3}, r"did you mean 'training_iteration'"),
        ({"loss": 3}, r"use one of: episode_reward_mean, "),
    ],
)
def test_wrong_conditions(stop, message):
    with pytest.raises(ConfigError, match=message):
        checked_stop(stop, "fit(stop=...)")


def test_iterations_without_improvement():
    rewards = [None, 1.0, 3.0, 2.0, 3.0, None, math.nan, 2.0, 3.5, None, 0.0]
    results = [{"evaluation": None if reward is None else {"episode_reward_mean": reward}} for reward in rewards]
    counted = Improvement("evaluation_reward_mean")
    expected = [0, 0, 0, 1, 2, 2, 2, 5, 0, 0, 2]  # it changes with a reward only
    assert [counted.after(result) for result in results] == expected
    for done in range(len(results)):  # a run that continues counts on
        continued = Improvement("evaluation_reward_mean", results[:done])
        assert [continued.after(result) for result in results[done:]] == expected[done:]
