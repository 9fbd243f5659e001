"""`Timings`: how long the parts of an iteration take, and how old the samples are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = ("sample_s", "wait_s", "learn_s", "learner_wait_s", "broadcast_s")


class Tally:
    """A running mean and maximum, without the numbers themselves."""

    def __init__(self) -> None:
        self._count = self._sum = 0
        self.largest: int | None = None

    @property
    def mean(self) -> float | None:
        """The mean; None without numbers."""
        return self._sum / self._count if self._count else None

    def add(self, number: int) -> None:
        self._count, self._sum = self._count + 1, self._sum + number
        self.largest = number if self.largest is None else max(self.largest, number)


class Timings:
    """The times of an iteration, and the policy lag of its samples: sums and means since the last `take`.

    Times, in seconds:
        sample_s: sampling, summed over all workers, with the gradients if workers compute them.
        wait_s: the driver's wait for workers.
        learn_s: updates.
        learner_wait_s: the learner thread's wait for batches.
        broadcast_s: broadcasts of weights.

    Attributes:
        lags: for each fragment learned from, the number of updates since the weights that sampled it.
        queue_depths: the length of the learner's queue, whenever a train batch or draw is added.
        dropped_steps: environment steps that were sampled but dropped, as too old or too many.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(_SECONDS, 0.0)
        self.lags, self.queue_depths = Tally(), Tally()
        self.dropped_steps = 0

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] += seconds

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Context that adds the duration of its block to the sum `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def take(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Returns `(seconds by name, other numbers by name)` since the last call; a mean of no numbers is None."""
        queue = {
            "policy_lag_mean": self.lags.mean,
            "policy_lag_max": self.lags.largest,
            "queue_depth_mean": self.queue_depths.mean,
            "dropped_steps": self.dropped_steps,
        }
        seconds = self._seconds
        self._clear()
        return seconds, queue
