"""A data set with Pendulum's shapes as a D4RL file, which all libraries read; needs only NumPy and h5py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np

EPISODE = 200


def d4rl_file(rows: int) -> Path:
    """Returns the path of a new file with `rows` random transitions in truncated episodes of 200 steps."""
    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-np.pi, np.pi, rows), rng.uniform(-8, 8, rows)
    actions = rng.uniform(-2, 2, (rows, 1))
    columns = {
        "observations": np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": (-(angle**2) - 0.1 * speed**2 - 0.001 * actions[:, 0] ** 2).astype(np.float32),
        "terminals": np.zeros(rows, np.bool_),
        "timeouts": np.arange(rows) % EPISODE == EPISODE - 1,
    }
    path = Path(tempfile.mkdtemp(prefix="rollax-bench-")) / "pendulum.hdf5"
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    return path
