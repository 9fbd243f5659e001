"""Integers of 64 bits in observations and learned columns, which JAX silently wraps to 32 bits."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import Space, spaces

from rollax.batch import Columns
from rollax.core import trees
from rollax.core.spaces import Path, at, leaves, path_text, space_text
from rollax.errors import BatchError, EnvError


class WideIntegers:
    """The parts of an observation space whose bounds exceed JAX's integers; their values are checked."""

    def __init__(self, observation_space: Space) -> None:
        self._parts: list[tuple[Path, spaces.Box, int, int]] = []
        for path, leaf in leaves(observation_space):
            if isinstance(leaf, spaces.Box) and leaf.dtype is not None and leaf.dtype.kind in "iu":
                limits = np.iinfo(jax.dtypes.canonicalize_dtype(leaf.dtype))
                low, high = int(limits.min), int(limits.max)
                if leaf.low.min() < low or leaf.high.max() > high:
                    self._parts.append((path, leaf, low, high))

    def check(self, columns: trees.Tree, policy_id: str) -> None:
        """Raises EnvError for an integer in columns of observations that JAX would change."""
        for path, leaf, low, high in self._parts:
            column: Any = at(columns, path)
            if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu":
                continue  # an array of JAX, or encoded as floats
            wrong = (column < low) | (column > high)
            if wrong.any():
                row = int(np.argwhere(wrong)[0][0])
                raise EnvError(
                    "An integer of the observations needs more than 32 bits.",
                    f"observations for policy {policy_id!r}{path_text(path)}, row {row} of {len(column)}",
                    f"{column[wrong][0]}, in {space_text(leaf)}",
                    expected=f"numbers from {low} to {high}, or floats",
                ).fix("declare a Box of float32 or float64, and scale its numbers")


def check_columns(columns: Columns, where: str) -> None:
    """Raises BatchError for an integer in a loss's columns that JAX would change, such as a wide id."""
    for name, column in columns.items():
        for leaf in trees.leaves(column):
            if not isinstance(leaf, np.ndarray) or leaf.dtype not in (np.int64, np.uint64) or not leaf.size:
                continue
            limits = np.iinfo(jax.dtypes.canonicalize_dtype(leaf.dtype))
            if leaf.min() < limits.min or leaf.max() > limits.max:
                raise BatchError(
                    "An integer of a column that the loss reads needs more than 32 bits.",
                    f"{where}, column {name!r}",
                    f"numbers from {leaf.min()} to {leaf.max()}, such as ids that remote workers assign",
                    expected=f"numbers from {limits.min} to {limits.max}",
                ).fix("number the ids in loss_columns: np.unique(ids, return_inverse=True)[1]; or return floats")
