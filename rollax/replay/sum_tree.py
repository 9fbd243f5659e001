"""`SumTree`: draws in proportion to weights, many at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_FAN_OUT = 8  # children per node: more children make fewer levels, with longer sums at each
_TOP = 2048  # the highest level is searched whole, so nothing is built above it


class SumTree:
    """Float64 weights; the time of a change or a draw grows with the logarithm of the number of weights.

    Every inner number is the sum of its children, and is summed again at each change, so that rounding errors do not
    accumulate. All `size` weights are 0 at first.

    Source: Schaul et al. (2016), section 3.3 and appendix B.2.1, arXiv:1511.05952. Deviations: eight children per node
    instead of two, and no levels above a few thousand nodes, because one operation on thousands of numbers costs less
    than eleven operations on hundreds.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changing = False  # a change of weights has begun: inner sums may be out of date
        self._levels: list[NDArray[np.float64]] = []  # [nodes / 8, 8] each; the leaves first
        nodes = size
        while not self._levels or self._levels[-1].size > _TOP:
            nodes = -(-nodes // _FAN_OUT)
            self._levels.append(np.zeros((nodes, _FAN_OUT)))

    @property
    def total(self) -> float:
        self._finish()
        return float(self._levels[-1].sum())

    @property
    def leaves(self) -> NDArray[np.float64]:
        """[size] all weights, as a view; change them by `set`."""
        return self._levels[0].reshape(-1)[: self.size]

    def get(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """[K] the weights at [K] positions."""
        return np.take(self._levels[0].reshape(-1), positions)

    def set(self, positions: NDArray[np.integer], weights: NDArray[np.float64] | float) -> None:
        """Sets the weights at [K] positions: [K] or one for all, finite, at least 0; of duplicates the last counts."""
        self._finish()
        self._changing = True
        self._levels[0].reshape(-1)[positions] = weights
        for below, above in pairwise(self._levels):
            positions = positions // _FAN_OUT
            above.reshape(-1)[positions] = np.take(below, positions, axis=0) @ np.ones(_FAN_OUT)
        self._changing = False

    def _finish(self) -> None:
        """Completes the sums after an interrupted change."""
        if self._changing:
            for below, above in pairwise(self._levels):
                above.reshape(-1)[: len(below)] = below @ np.ones(_FAN_OUT)
            self._changing = False

    def sample(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """[count] ascending positions drawn with P(i) = weight_i / total.

        Stratified as in section 3.3 of the source: one draw from each of `count` equal parts of the total. At least one
        weight must be above 0. Positions with weight 0 are never drawn.
        """
        self._finish()
        top = self._levels[-1].reshape(-1)
        sums = np.cumsum(top)
        # Rounding must not select a node beyond the last one with a weight.
        wanted = np.minimum((np.arange(count) + rng.random(count)) * (sums[-1] / count), np.nextafter(sums[-1], 0))
        nodes = np.searchsorted(sums, wanted, side="right")
        rest = wanted - np.where(nodes > 0, sums[nodes - 1], 0.0)
        for level in self._levels[-2::-1]:
            nodes, rest = _descend(level, nodes, rest)
        return nodes


def _descend(
    level: NDArray[np.float64], nodes: NDArray[np.int64], rest: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each node, the child that contains `rest`, counted from the node's beginning, and the rest in that child."""
    sums = np.zeros((_FAN_OUT + 1, len(nodes)))
    sums[1:] = np.take(level, nodes, axis=0).T
    # Child by child: NumPy adds along the long axis of the samples many times faster than along the short axis.
    for child in range(2, _FAN_OUT + 1):
        sums[child] += sums[child - 1]
    rest = np.minimum(rest, np.nextafter(sums[-1], 0))
    chosen = np.count_nonzero(sums[1:_FAN_OUT] <= rest, axis=0)
    return nodes * _FAN_OUT + chosen, rest - sums[chosen, np.arange(len(nodes))]
