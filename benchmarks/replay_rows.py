"""Synthetic transitions of CartPole's shapes, the same for every side of the replay benchmarks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CAPACITY = 1_000_000
BATCH = 512
STEPS = 64
ALPHA, BETA = 0.6, 0.4

Arrays = dict[str, np.ndarray]


def segments() -> list[Arrays]:
    """Returns the `BATCH / STEPS` episodes of one batch; each has `STEPS` steps and terminates."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(BATCH // STEPS):
        obs = rng.normal(size=(STEPS + 1, 4)).astype(np.float32)
        actions = rng.integers(0, 2, STEPS)
        terminateds = np.arange(STEPS) == STEPS - 1
        found.append(
            {"obs": obs, "actions": actions, "rewards": np.ones(STEPS, np.float32), "terminateds": terminateds}
        )
    return found


def errors() -> Callable[[], np.ndarray]:
    """Returns a function that returns new random errors of one batch at every call."""
    rng = np.random.default_rng(1)
    return lambda: rng.random(BATCH) + 0.01
