"""`RunningMoments`: count, mean and variance of rows; `RunningStatistics`: several of them, merged over processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import CheckpointError, NonFiniteError, ShapeError

State = dict[str, NDArray]

_MEAN = "mean"
_PARTS = ("count", _MEAN, "squares")
LARGEST = "largest"
"""The part of a state with the largest magnitude of a row; see `RunningReturns`."""
_Arrays = tuple[NDArray, NDArray, NDArray]


class RunningMoments:
    """Count, mean and variance of all rows so far, for each element of a row, in float64.

    It also has the statistics of the recent rows, which are the rows since the last `clear_recent`; `RunningStatistics`
    merges these statistics over processes.

    Source: Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance", for sets a and b of
        n_a + n_b = n rows, their means m and sums of squared deviations S:
            m = m_a + (m_b - m_a) · n_b / n,  S = S_a + S_b + (m_b - m_a)² · n_a · n_b / n
        The variance is the population's, S / n.

    Args:
        shape: the shape of one row; () for numbers.
    Attributes:
        frozen: whether `update` changes nothing, as for a policy that does not learn.
    """

    part_names: ClassVar[tuple[str, ...]] = _PARTS
    """The names of the `arrays`; in a state of `RunningStatistics` they follow a prefix."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape, self.frozen = shape, False
        # Index 0 is for all rows, index 1 for the recent rows. Both are in the same arrays because few rows arrive at a
        # time, so that the number of NumPy calls determines the cost. The arrays are replaced together and never
        # written into, so that an interrupt leaves either all old arrays or all new arrays.
        self._parts = self._none()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, count={self.count:g})"

    @property
    def count(self) -> float:
        """The number of rows so far."""
        return float(self._parts[0][0, 0])

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each element; 0 without rows."""
        return self._parts[1][0].reshape(self.shape).copy()

    @property
    def variance(self) -> NDArray[np.float64]:
        """The variance of each element; 0 with fewer than two rows."""
        return (self._parts[2][0] / max(self.count, 1)).reshape(self.shape)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation of each element, as a divisor: never 0, and 1 with fewer than two rows."""
        # 1e-8 is far below all deviations that float32 can represent around an ordinary mean.
        return np.sqrt(self.variance) + 1e-8 if self.count > 1 else np.ones(self.shape)

    def summary(self) -> dict[str, NDArray[np.float32]]:
        """`mean` and `deviation`, in float32, for compiled functions."""
        return {"mean": self.mean.astype(np.float32), "deviation": np.asarray(self.deviation, np.float32)}

    def update(self, rows: ArrayLike) -> None:
        """Adds [N, ...] rows.

        Raises ShapeError for rows of another shape, and NonFiniteError (or the error of a subclass) for rows that are
        not finite or too large. After an error the statistics are unchanged.
        """
        self._add_rows(self._flat(np.asarray(rows)))

    def arrays(self, *, recent: bool = False) -> tuple[NDArray, ...]:
        """Copies of count, mean and sum of squared deviations, for all rows or for the recent rows."""
        count, *others = (part[int(recent)] for part in self._parts)
        mean, squares = (part.reshape(self.shape).copy() for part in others)
        return np.array(count[0]), mean, squares

    def set_arrays(self, count: NDArray, mean: NDArray, squares: NDArray, *others: NDArray) -> None:
        """Replaces the statistics of all rows; afterwards there are no recent rows."""
        none = self._none()
        after = _added(none, float(count), np.ravel(mean), np.ravel(squares)) if count > 0 else none
        self._parts = _with_recent(after, none)

    def add(self, count: NDArray, mean: NDArray, squares: NDArray, *others: NDArray, recent: bool) -> None:
        """Adds the statistics of further rows; if `recent`, the rows count as recent rows too."""
        if count > 0:
            after = _added(self._parts, float(count), np.ravel(mean), np.ravel(squares))
            self._parts = after if recent else _with_recent(after, self._parts)

    def clear_recent(self) -> None:
        """Resets the statistics of the recent rows."""
        self._parts = _with_recent(self._parts, self._none())

    def _none(self) -> _Arrays:
        size = math.prod(self.shape)
        return np.zeros((2, 1)), np.zeros((2, size)), np.zeros((2, size))

    def _flat(self, rows: NDArray) -> NDArray[np.float64]:
        """[N, size] a copy of rows [N, ...]; raises ShapeError for rows of another shape."""
        if rows.shape[1:] != self.shape or not rows.ndim:
            raise ShapeError("The rows have the wrong shape.", got=rows.shape, expected=("N", *self.shape))
        return rows.reshape(len(rows), math.prod(self.shape)).astype(np.float64)

    def _add_rows(self, rows: NDArray[np.float64]) -> None:
        if self.frozen or not len(rows):
            return
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite raise an error below
            mean = np.add.reduce(rows, axis=0) / len(rows)
            apart = rows - mean
            squares = np.einsum("ij,ij->j", apart, apart)
        if not math.isfinite(np.add.reduce(squares, axis=None)):
            raise self._not_finite(mean)
        self._parts = _added(self._parts, len(rows), mean, squares)

    def _not_finite(self, mean: NDArray[np.float64]) -> Exception:
        return NonFiniteError(
            "The rows have no statistics: they or their squares are NaN or infinite.",
            where=f"{type(self).__name__}.update",
            got=f"mean {np.array2string(mean, threshold=10)}",
            expected="finite numbers",
            fix="look for the row that is not finite where these numbers are computed",
        )


class RunningStatistics:
    """The running moments of one policy in one process, by name.

    Workers synchronize through the driver: it merges the `take_delta()` of each worker, and each worker calls `sync`
    with the driver's `state()`. A state has the arrays `count`, `mean` and `squares` of each of the moments, and for
    `RunningReturns` also `largest`; a prefix of the names tells the moments apart.

    Args:
        moments: prefix -> moments, which are shared, not copied.
    """

    def __init__(self, moments: Mapping[str, RunningMoments]) -> None:
        self.moments = dict(moments)

    def state(self) -> State:
        """Copies of all statistics, as arrays."""
        return self._arrays(recent=False)

    def set_state(self, state: Mapping[str, NDArray]) -> None:
        """Adopts the state of other statistics with these names and shapes; `take_delta` starts from zero.

        Raises:
            CheckpointError: the state has other names or shapes, or numbers that no statistics have.
        """
        state = self._checked(state)
        for name, array in state.items():
            if not np.isfinite(array).all() or (np.any(array < 0) and not name.endswith(_MEAN)):
                raise CheckpointError(
                    "The running statistics are impossible.",
                    where=name,
                    got=f"numbers from {np.min(array)} to {np.max(array)}",
                    expected="finite numbers, and none below 0 except in means",
                    fix="restore another checkpoint: the state was changed after it was saved",
                )
        for prefix, moments in self.moments.items():
            moments.set_arrays(*(state[prefix + part] for part in moments.part_names))

    def take_delta(self) -> State:
        """The statistics of the rows since the last call, for the `merge` of another process."""
        delta = self._arrays(recent=True)
        for moments in self.moments.values():
            moments.clear_recent()
        return delta

    def merge(self, delta: Mapping[str, NDArray]) -> None:
        """Adds the statistics of another process. The order of merging does not matter, up to rounding."""
        self._add(delta, recent=False)

    def sync(self, state: Mapping[str, NDArray]) -> None:
        """Adopts `state`, which lacks the rows of this process since the last `take_delta`, and adds these rows."""
        pending = self.take_delta()
        self.set_state(state)
        self._add(pending, recent=True)

    def _add(self, delta: Mapping[str, NDArray], *, recent: bool) -> None:
        delta = self._checked(delta)
        for prefix, moments in self.moments.items():
            moments.add(*(delta[prefix + part] for part in moments.part_names), recent=recent)

    def _arrays(self, *, recent: bool) -> State:
        return {
            prefix + part: array
            for prefix, moments in self.moments.items()
            for part, array in zip(moments.part_names, moments.arrays(recent=recent), strict=True)
        }

    def _checked(self, state: Mapping[str, NDArray]) -> Mapping[str, NDArray]:
        own = self._arrays(recent=False)
        # States of earlier versions have no largest magnitudes.
        state = {**{name: np.zeros_like(array) for name, array in own.items() if name.endswith(LARGEST)}, **state}
        if state.keys() != own.keys():
            raise CheckpointError(
                "The running statistics are of a different filter, algorithm or observation space.",
                where="observation filter and running statistics",
                got=sorted(state),
                expected=sorted(own),
                fix="use the observation_filter, algorithm, environment and spaces that they were saved with",
            )
        for name, array in own.items():
            if np.shape(state[name]) != array.shape:
                raise CheckpointError(
                    "The running statistics are of a different observation space.",
                    where=name,
                    got=f"shape {np.shape(state[name])}",
                    expected=f"shape {array.shape}",
                    fix="restore with the environment and spaces that they were saved with",
                )
        return state


def merged(first: Mapping[str, NDArray], second: Mapping[str, NDArray]) -> State:
    """Returns the state for the rows of two states together; both have the same names."""
    found = dict(first)
    found |= {name: np.maximum(first[name], second[name]) for name in first if name.endswith(LARGEST)}
    for prefix in [name.removesuffix(_PARTS[0]) for name in first if name.endswith(_PARTS[0])]:
        count, mean, squares = (f"{prefix}{part}" for part in _PARTS)
        if second[count] > 0:
            before = first[count], first[mean], first[squares]
            parts = _added(before, float(second[count]), second[mean], second[squares])
            found |= {name: np.asarray(part) for name, part in zip((count, mean, squares), parts, strict=True)}
    return found


def _added(parts: _Arrays, count: float, mean: NDArray, squares: NDArray) -> _Arrays:
    before, means, sums = parts
    total = before + count
    apart = mean - means
    share = count / total
    means = means + apart * share
    apart *= apart
    apart *= before * share
    apart += squares
    apart += sums
    return total, means, apart


def _with_recent(all_rows: Sequence[NDArray], recent: Sequence[NDArray]) -> _Arrays:
    count, mean, squares = (np.stack([a[0], b[1]]) for a, b in zip(all_rows, recent, strict=True))
    return count, mean, squares
