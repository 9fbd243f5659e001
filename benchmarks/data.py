"""Synthetic data, the same for all sides: transitions of CartPole's shapes, stacked images, a D4RL file.

Only NumPy is imported at first, because the other libraries' sides use this module too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

CAPACITY = 1_000_000
BATCH = 512
STEPS = 64
ALPHA, BETA = 0.6, 0.4
"""Settings of the prioritized buffers."""
SIDE, STACK, ACTIONS = 84, 4, 6
EPISODE = 500
"""Images: width and height, number in an observation; actions; steps of an episode."""
_DISTINCT = 256  # distinct images, which repeat
_D4RL_EPISODE = 200  # steps

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


def stacks(steps: int, *, channels_first: bool = False) -> np.ndarray:
    """Returns [steps, 84, 84, 4] uint8: each observation drops the oldest image of the previous one and adds a new one.

    Args:
        steps: number of observations.
        channels_first: return [steps, 4, 84, 84], the layout of PyTorch.
    """
    images = np.random.default_rng(0).integers(0, 256, (_DISTINCT, SIDE, SIDE), dtype=np.uint8)
    which = (np.arange(steps)[:, None] + np.arange(STACK)) % _DISTINCT
    found = images[which]
    return found if channels_first else np.ascontiguousarray(np.moveaxis(found, 1, -1))


def d4rl_file(rows: int) -> Path:
    """Returns a new file with `rows` random transitions of Pendulum's shapes, in truncated episodes of 200 steps."""
    import h5py

    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-np.pi, np.pi, rows), rng.uniform(-8, 8, rows)
    actions = rng.uniform(-2, 2, (rows, 1))
    columns = {
        "observations": np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": (-(angle**2) - 0.1 * speed**2 - 0.001 * actions[:, 0] ** 2).astype(np.float32),
        "terminals": np.zeros(rows, np.bool_),
        "timeouts": np.arange(rows) % _D4RL_EPISODE == _D4RL_EPISODE - 1,
    }
    path = Path(tempfile.mkdtemp(prefix="rollax-bench-")) / "pendulum.hdf5"
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    return path
