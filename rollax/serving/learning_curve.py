"""`LearningCurve`: the rewards of a learning server's episodes over time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollax.runs.results import number_in

_WINDOW = 100


class LearningCurve:
    """Means over the last 100 episodes, as at most `most_points` points; with more, every second point is dropped.

    Attributes:
        points: dicts with `time_s` since the run began, `steps`, `reward` and `length`.
    """

    def __init__(self, most_points: int = 500, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most_points, clock
        self._rewards: deque[float] = deque(maxlen=_WINDOW)
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._started, self._every_s = clock(), 1.0
        self.points: list[dict[str, float]] = []
        self.episodes = self.steps = 0

    @property
    def reward(self) -> float | None:
        """The mean reward of the last episodes; None before the first."""
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    @property
    def length(self) -> float | None:
        """The mean length of the last episodes; None before the first."""
        return sum(self._lengths) / len(self._lengths) if self._lengths else None

    def restore(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Adds the points of earlier results of the run."""
        passed = 0.0
        for result in results:
            values = [number_in(result, name) for name in ("time_total_s", "timesteps_total", "episode_reward_mean")]
            seconds, steps, reward = values
            passed, self.steps = seconds or passed, int(steps or self.steps)
            self.episodes += int(number_in(result, "episodes_this_iter") or 0)
            if reward is not None:
                length = number_in(result, "episode_len_mean") or 0.0
                self._append(time_s=passed, steps=self.steps, reward=reward, length=length)
        self._started = self._clock() - passed

    def add(self, reward: float, length: int) -> None:
        self._rewards.append(reward)
        self._lengths.append(length)
        self.episodes += 1
        assert self.reward is not None
        assert self.length is not None
        now = self._clock() - self._started
        self._append(time_s=now, steps=self.steps, reward=self.reward, length=self.length)

    def _append(self, **point: float) -> None:
        if self.points and point["time_s"] - self.points[-1]["time_s"] < self._every_s:
            return
        self.points.append(point)
        if len(self.points) > self._most:
            del self.points[1::2]
            self._every_s *= 2
