"""Stop conditions of a training run, quantity -> number, and an estimate of the remaining time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollax.core.numbers import is_finite, is_number
from rollax.errors import ConfigError, RollaxError, nearest
from rollax.runs.results import WHERE_IN_RESULT, number_in, read_results

_GOALS = ("episode_reward_mean", "evaluation_reward_mean")
LIMITS = ("timesteps_total", "training_iteration", "time_total_s")
_OTHER_NAMES = {
    **dict.fromkeys(("reward", "mean_reward", "episode_return_mean", "reward_threshold"), "episode_reward_mean"),
    **dict.fromkeys(("total_timesteps", "timesteps", "steps", "num_steps"), "timesteps_total"),
    **dict.fromkeys(("num_env_steps_sampled_lifetime", "num_env_steps_sampled"), "timesteps_total"),
    **dict.fromkeys(("iterations", "num_iterations"), "training_iteration"),
}
"""Names of quantities in other libraries, without the section before a slash."""
PLATEAU = "iterations_without_improvement"
DONE = "done"
"""The entry of a result by which a callback ends the run, as in Ray Tune."""


def checked_stop(values: Mapping[str, Any], where: str | Mapping[str, str]) -> dict[str, float]:
    """Returns the conditions that are set, goals before limits; None means not set.

    Raises ConfigError for an unknown condition or wrong value. `where` names its place: a section, or condition ->
    option.
    """
    if not isinstance(values, Mapping):
        steps = values if is_number(values) else 10_000
        fix = f"write {{'timesteps_total': {steps}}}"
        what, expected = "The stop conditions are not a dict.", "a dict: quantity -> number"
        raise ConfigError(what, where=str(where), got=values, expected=expected, fix=fix)
    for key in values:
        if key not in WHERE_IN_RESULT:
            ours = _OTHER_NAMES.get(str(key).rpartition("/")[2])
            fix = nearest(str(key), WHERE_IN_RESULT) if ours is None else f"in rollax it is '{ours}'"
            raise ConfigError("Unknown stop condition.", where=str(where), got=key, fix=fix)
    known = {name: values[name] for name in WHERE_IN_RESULT if values.get(name) is not None}
    given = {name: value.item() if isinstance(value, np.number) else value for name, value in known.items()}
    for name, value in given.items():
        place = f"{where}: {name}" if isinstance(where, str) else where[name]
        if not is_finite(value):
            fix = "write it without quotation marks" if isinstance(value, str) else "correct it, or leave it out"
            what, expected = "A stop condition is not a number.", "a finite number"
            raise ConfigError(what, where=place, got=f"{value!r} ({type(value).__name__})", expected=expected, fix=fix)
        if name not in _GOALS and value <= 0:
            raise ConfigError("The limit is already reached before training begins.", place, value).expected(
                "more than 0", "raise it, or use `rollax evaluate` to play without training"
            )
    return given


def reached(stop: Mapping[str, float], result: Mapping[str, Any]) -> str | None:
    """Returns the first condition that the result meets, else "done" if a callback has set `result["done"]`."""
    for name, threshold in stop.items():
        value = number_in(result, *WHERE_IN_RESULT[name])
        if value is not None and value >= threshold:
            return name
    return DONE if result.get(DONE) else None


def ended_by(run: Path, iteration: int, stop: Mapping[str, float]) -> str | None:
    """Returns the condition that ends the run in a folder at an iteration; None if it goes on or lacks this result."""
    return reached(stop, result_at(run, iteration))


def result_at(run: Path, iteration: int) -> Mapping[str, Any]:
    """Returns the result of an iteration in a run folder; {} if there is none."""
    try:
        results, _ = read_results(run)
    except RollaxError:
        return {}
    return next((result for result in results if number_in(result, "training_iteration") == iteration), {})


def missed_goal(stop: Mapping[str, float], result: Mapping[str, Any]) -> bool:
    """Returns whether the stop conditions include a reward goal, and the result reaches none."""
    goals = {name: stop[name] for name in stop if name in _GOALS}
    return bool(goals) and reached(goals, result) not in goals


class Improvement:
    """Counts the iterations since the best value of a reward.

    Args:
        reward: one of the goals.
        earlier: the results of the run so far.
    """

    def __init__(self, reward: str, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._where, self._best = WHERE_IN_RESULT[reward], -math.inf
        self._since = self._count = 0  # iterations since the best reward, until now and until the last reward
        for result in earlier:
            self.after(result)

    def after(self, result: Mapping[str, Any]) -> int:
        """Returns the count up to the last iteration with a reward, 0 before the first: no other one can improve."""
        reward = number_in(result, *self._where)
        self._since += 1
        if reward is not None:
            if reward > self._best:
                self._best, self._since = reward, 0
            self._count = self._since
        return self._count


class TimeLeft:
    """Estimates the seconds until the nearest limit from the speed of the last iterations; goals are not estimated."""

    def __init__(self, stop: Mapping[str, float], window: int = 20) -> None:
        self._limits = {name: value for name, value in stop.items() if name in LIMITS}
        self._recent: deque[dict[str, float]] = deque(maxlen=window + 1)

    def estimate(self, result: Mapping[str, Any]) -> float | None:
        """Returns the seconds left after the iteration of `result`, or None if unknown."""
        seen = {name: number_in(result, name) for name in LIMITS}
        now = {name: value for name, value in seen.items() if value is not None}
        if "time_total_s" not in now:
            return None
        self._recent.append(now)
        first = self._recent[0]
        left = [self._until(name, limit, first, now) for name, limit in self._limits.items()]
        return min((seconds for seconds in left if seconds is not None), default=None)

    @staticmethod
    def _until(name: str, limit: float, first: Mapping[str, float], now: Mapping[str, float]) -> float | None:
        if name not in now:
            return None
        if name == "time_total_s":
            return max(0.0, limit - now[name])
        since = first if first is not now else {"time_total_s": 0.0, name: 0.0}
        progress = now[name] - since.get(name, 0.0)
        seconds = now["time_total_s"] - since["time_total_s"]
        return max(0.0, limit - now[name]) * seconds / progress if progress > 0 else None
