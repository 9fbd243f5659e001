"""`SlotMoments`: the running statistics of observations, for each slot separately."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollax.core.running_statistics import State
from rollax.core.spaces import at
from rollax.core.trees import Tree
from rollax.rollout.filters import ObservationFilter, not_finite, prefix_of


class SlotMoments:
    """Count, mean and sum of squared deviations of the elements that a filter standardizes, for each slot.

    A slot's statistics do not depend on other slots, so the merged result does not depend on the number of slots.

    Source: Welford (1962), for the n-th row x:  m ← m + (x - m) / n,  S ← S + (x - m_old)(x - m_new)

    Args:
        observation_filter: standardizes the observations.
        slots: the number of slots.
    """

    def __init__(self, observation_filter: ObservationFilter, slots: int) -> None:
        shapes = {path: (slots, *moments.shape) for path, moments in observation_filter.leaves.items()}
        self._counts = np.zeros(slots)
        self._parts = {path: (np.zeros(shape), np.zeros(shape)) for path, shape in shapes.items()}

    def add(self, slots: NDArray, columns: Tree) -> None:
        """Adds one row of unfiltered observations to each of these slots."""
        if not self._parts:
            return
        self._counts[slots] += 1
        counts = self._counts[slots]
        for path, (means, squares) in self._parts.items():
            rows, mean = np.asarray(at(columns, path), np.float64), means[slots]
            with np.errstate(over="ignore", invalid="ignore"):  # checked in `of`, at the end of the episode
                apart = rows - mean
                mean += apart / counts.reshape(-1, *[1] * (apart.ndim - 1))
                means[slots] = mean
                squares[slots] += apart * (rows - mean)

    def clear(self, slot: int) -> None:
        """Resets the statistics of a slot."""
        self._counts[slot] = 0.0
        for means, squares in self._parts.values():
            means[slot] = squares[slot] = 0.0

    def of(self, slot: int) -> State:
        """The statistics of a slot, for `ObservationFilter.merge`; EnvError if they are not finite."""
        state: State = {}
        for path, (means, squares) in self._parts.items():
            if not math.isfinite(np.add.reduce(squares[slot], axis=None)):
                raise not_finite(path, means[slot])
            arrays = {"count": self._counts[slot : slot + 1][0], "mean": means[slot], "squares": squares[slot]}
            state |= {f"{prefix_of(path)}{part}": np.array(array) for part, array in arrays.items()}
        return state
