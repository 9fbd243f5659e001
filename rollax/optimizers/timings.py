"""`Timings`: where the time of an iteration went, and the policy lag of its samples."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = ("sample_s", "wait_s", "learn_s", "learner_wait_s", "broadcast_s")


class Timings:
    """Sums and means since they were last taken; every optimizer has the same.

    `sample_s`: what all workers together spent sampling (and on gradients, where they compute them); `wait_s`: the
    driver waited for them; `learn_s`: updates; `learner_wait_s`: a learner thread had nothing to learn from;
    `broadcast_s`: broadcasting weights. The policy lag of a fragment counts the updates made since its weights.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(_SECONDS, 0.0)
        self._lags: list[int] = []
        self._depths: list[int] = []

    def add(self, name: str, seconds: float) -> None:
        """Adds to one of the sums."""
        self._seconds[name] += seconds

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Adds what its block takes to one of the sums."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started

    def add_lag(self, updates: int) -> None:
        """Notes the policy lag of a fragment that is learned from."""
        self._lags.append(updates)

    def add_queue_depth(self, batches: int) -> None:
        """Notes how many train batches wait for the learner."""
        self._depths.append(batches)

    def take(self) -> tuple[dict[str, float], dict[str, Any]]:
        """`(timers, queue)` since this was last called: seconds by name; and lag and depth, None where nothing was."""
        seconds, lags, depths = self._seconds, self._lags, self._depths
        self._clear()
        return seconds, {
            "policy_lag_mean": sum(lags) / len(lags) if lags else None,
            "policy_lag_max": max(lags, default=None),
            "queue_depth_mean": sum(depths) / len(depths) if depths else None,
        }
