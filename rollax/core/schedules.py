"""Schedules: piecewise-linear functions of the number of sampled steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from rollax.core.numbers import is_finite, is_number
from rollax.errors import ConfigError

_FORM = "a number, or [[timestep, value], ...] with rising timesteps"


class Schedule:
    """A function that is linear between points, and constant before the first point and after the last point.

    >>> lr = Schedule([[0, 1.0], [100, 0.0]])
    >>> lr(25)
    0.75

    Args:
        points: a number (constant), or `[[timestep, value], ...]` with increasing timesteps.
        where: the name of the scheduled value, for errors.
    Raises:
        ConfigError: neither a number nor a list of points, an invalid point, or timesteps that do not increase.
    """

    def __init__(self, points: float | Sequence[Sequence[float]], *, where: str = "a schedule") -> None:
        pairs = [[0, points]] if is_number(points) else points
        if not isinstance(pairs, Sequence) or isinstance(pairs, str) or not pairs:
            raise ConfigError(
                "The schedule has no points: it is neither a number nor a non-empty list.", where, points
            ).expected(_FORM, "give a number or a list of points")
        for pair in pairs:
            _check_point(pair, where)
        self.timesteps = tuple(float(timestep) for timestep, _ in pairs)
        self.values = tuple(float(value) for _, value in pairs)
        for earlier, later in zip(self.timesteps, self.timesteps[1:], strict=False):
            if earlier >= later:
                raise ConfigError(
                    "The timesteps of the schedule do not increase.", where, f"{later:g} after {earlier:g}"
                ).expected(_FORM, "sort the points by timestep; for a jump, give two points one timestep apart")

    def __call__(self, timestep: float) -> float:
        after = bisect_right(self.timesteps, timestep)
        if after == 0:
            return self.values[0]
        if after == len(self.values):
            return self.values[-1]
        start, end = self.timesteps[after - 1], self.timesteps[after]
        passed = (timestep - start) / (end - start)
        return (1 - passed) * self.values[after - 1] + passed * self.values[after]

    def __repr__(self) -> str:
        return f"Schedule({[list(point) for point in zip(self.timesteps, self.values, strict=True)]})"


def _check_point(pair: Any, where: str) -> None:
    is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
    if is_pair and all(map(is_finite, pair)) and float(pair[0]) >= 0:
        return
    raise ConfigError("A point of the schedule is invalid.", where, pair).expected(
        "[timestep, value], two finite numbers, the timestep 0 or more", f"write {_FORM}"
    )
