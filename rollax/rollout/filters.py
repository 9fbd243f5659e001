"""Observation filters, called once per poll with whole columns.

Workers synchronize them through the driver: it merges every worker's `take_delta()`; they `sync` with its `state()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core.spaces import Path, at, leaves, walk
from rollax.core.trees import Tree
from rollax.errors import CheckpointError, ConfigError, EnvError, ShapeError
from rollax.models.features import NOT_FEATURES, ImageLayout

State = dict[str, NDArray]

_PARTS = ("count", "mean", "squares")


class MeanStdFilter:
    """Standardizes the floating-point Box leaves of observations with the mean and deviation of all observations so
    far.

    Other leaves (images and other integers, Discrete, ...) and the keys `action_mask` and `avail_actions` are not
    changed. Each element of a leaf has its own statistics, in float64. Each poll is one update with all of its rows,
    before they are standardized. With fewer than two rows, only the mean is subtracted. Rows that are not finite are
    refused, because the statistics would not recover from one.

    Source: Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance", for sets a and b of
        n_a + n_b = n rows, their means m and sums of squared deviations S:
            m = m_a + (m_b - m_a) n_b / n,  S = S_a + S_b + (m_b - m_a)² n_a n_b / n
        The deviation is the population's, sqrt(S / n).

    Args:
        observation_space: the space of one observation.
    """

    clip = 10.0
    """Results are clipped to [-clip, clip] deviations; elements that rarely change would otherwise be unbounded."""

    def __init__(self, observation_space: spaces.Space) -> None:
        self._space = observation_space
        self._moments = {path: _Moments(path, leaf.shape or ()) for path, leaf in self._filtered(observation_space)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @staticmethod
    def _filtered(space: spaces.Space) -> list[tuple[Path, spaces.Space]]:
        """The leaves that are standardized."""
        return [
            (path, leaf)
            for path, leaf in leaves(space)
            if isinstance(leaf, spaces.Box)
            and np.issubdtype(leaf.dtype, np.floating)
            and ImageLayout.of(leaf) is None  # images are scaled by their bounds
            # Masks are not quantities, and the slots of padded embeddings must stay comparable with each other.
            and NOT_FEATURES.isdisjoint(path)
        ]

    def __call__(self, columns: Tree, update: bool = True) -> Tree:
        """The filtered columns, as new arrays; with `update` they are added to the statistics.

        Raises EnvError for rows that are not finite if `update`, without changing the statistics.
        """

        def filtered(_: spaces.Space, path: Path, leaf: NDArray) -> NDArray:
            moments = self._moments.get(path)
            return leaf if moments is None else moments.standardize(leaf, self.clip, update)

        return walk(filtered, self._space, columns) if self._moments else columns

    def state(self) -> State:
        """Copies of all statistics, as arrays."""
        return self._arrays(0)

    def scales(self) -> dict[Path, tuple[NDArray, NDArray]]:
        """Path of each filtered leaf -> mean that is subtracted, and scale that it is divided by."""
        return {path: moments.scale() for path, moments in self._moments.items()}

    def moments(self) -> dict[Path, tuple[NDArray, NDArray, NDArray]]:
        """Path of each filtered leaf -> number of rows so far, their mean and variance."""
        parts = {path: moments.arrays(0) for path, moments in self._moments.items()}
        return {path: (count, mean, squares / max(count, 1)) for path, (count, mean, squares) in parts.items()}

    def set_state(self, state: Mapping[str, NDArray]) -> None:
        """Adopts the state of another filter; `take_delta` starts from zero.

        Raises:
            CheckpointError: the state is of another filter or observation space.
        """
        self._check(state)
        for path, moments in self._moments.items():
            moments.become(*(state[f"{_leaf_name(path)}{part}"] for part in _PARTS))

    @property
    def is_new(self) -> bool:
        """Whether there are no statistics yet, so that observations are not changed; False if it filters no leaf."""
        return bool(self._moments) and not any(moments.arrays(0)[0] for moments in self._moments.values())

    def take_delta(self) -> State:
        """The statistics of observations since the last call, for another filter's `merge`."""
        delta = self._arrays(1)
        for moments in self._moments.values():
            moments.clear_recent()
        return delta

    def merge(self, delta: Mapping[str, NDArray]) -> None:
        """Adds the statistics of another filter. The order of merging does not matter."""
        self._add(delta, recent=False)

    def sync(self, state: Mapping[str, NDArray]) -> None:
        """`set_state`, plus the statistics since the last `take_delta`, which `state` does not contain yet."""
        pending = self.take_delta()
        self.set_state(state)
        self._add(pending, recent=True)

    def _add(self, delta: Mapping[str, NDArray], *, recent: bool) -> None:
        """Adds statistics; `recent`: the next `take_delta` returns them too."""
        self._check(delta)
        for path, moments in self._moments.items():
            moments.add(*(delta[f"{_leaf_name(path)}{part}"] for part in _PARTS), both=recent)

    def _arrays(self, which: int) -> State:
        named = ((_leaf_name(path), moments.arrays(which)) for path, moments in self._moments.items())
        return {f"{name}{part}": array for name, arrays in named for part, array in zip(_PARTS, arrays, strict=True)}

    def _check(self, state: Mapping[str, NDArray]) -> None:
        own = self._arrays(0)
        if state.keys() != own.keys():
            raise CheckpointError(
                "The filter state is of a different filter or observation space.", "observation filter", sorted(state)
            ).expected(sorted(own), "use the observation_filter, environment and spaces that it was saved with")
        for name, array in own.items():
            if np.shape(state[name]) != array.shape:
                raise CheckpointError(
                    "The filter state is of a different observation space.", name, f"shape {np.shape(state[name])}"
                ).expected(f"shape {array.shape}", "restore with the environment and spaces that it was saved with")


class NoFilter(MeanStdFilter):
    """Leaves all observations unchanged."""

    @staticmethod
    def _filtered(space: spaces.Space) -> list[tuple[Path, spaces.Space]]:
        return []


class _Moments:
    """Count, mean and sum of squared deviations of a leaf's elements: [0] of all rows, [1] of rows since `take_delta`.

    Both are in the same arrays because a poll is small, so its cost is the number of NumPy calls. The arrays are
    replaced together and never written into, so an interrupt leaves either the old or the new ones.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self._parts = self._none()

    def _none(self) -> tuple[NDArray, NDArray, NDArray]:
        size = int(np.prod(self.shape))
        return np.zeros((2, 1)), np.zeros((2, size)), np.zeros((2, size))

    def standardize(self, leaf: NDArray, clip: float, update: bool) -> NDArray[np.float32]:
        if leaf.shape[1:] != self.shape:
            raise ShapeError("The observations have the wrong shape.", got=leaf.shape, expected=("N", *self.shape))
        rows = leaf.reshape(len(leaf), self._parts[1].shape[1]).astype(np.float64)
        if update and len(rows):
            with np.errstate(over="ignore", invalid="ignore"):  # raises an error below
                mean = np.add.reduce(rows, axis=0) / len(rows)
                apart = rows - mean
                squares = np.einsum("ij,ij->j", apart, apart)
            _check_moments(self.path, mean, squares)
            self._parts = _added(self._parts, len(rows), mean, squares)
        count, mean, squares = self._parts
        rows -= mean[0]
        if count[0, 0] > 1:
            # 1e-8 is far below all deviations that float32 can represent around an ordinary mean.
            rows /= np.sqrt(squares[0] / count[0]) + 1e-8
        np.maximum(rows, -clip, out=rows)
        np.minimum(rows, clip, out=rows)
        return rows.astype(np.float32).reshape(leaf.shape)

    def scale(self) -> tuple[NDArray, NDArray]:
        count, mean, squares = (part[0] for part in self._parts)
        deviation = np.sqrt(squares / count) + 1e-8 if count[0] > 1 else np.ones_like(mean)
        return mean.reshape(self.shape).copy(), deviation.reshape(self.shape)

    def add(self, count: NDArray, mean: NDArray, squares: NDArray, *, both: bool) -> None:
        """Adds other statistics; `both`: also to the statistics since `take_delta`."""
        if count > 0:
            after = _added(self._parts, float(count), np.ravel(mean), np.ravel(squares))
            self._parts = after if both else self._with_recent(after, self._parts)

    def become(self, count: NDArray, mean: NDArray, squares: NDArray) -> None:
        """Replaces the statistics; the statistics since `take_delta` become empty."""
        none = self._none()
        after = _added(none, float(count), np.ravel(mean), np.ravel(squares)) if count > 0 else none
        self._parts = self._with_recent(after, none)

    def arrays(self, which: int) -> tuple[NDArray, NDArray, NDArray]:
        count, *others = self._parts
        mean, squares = (part[which].reshape(self.shape).copy() for part in others)
        return np.array(count[which, 0]), mean, squares

    def clear_recent(self) -> None:
        self._parts = self._with_recent(self._parts, self._none())

    @staticmethod
    def _with_recent(all_rows: Sequence[NDArray], recent: Sequence[NDArray]) -> tuple[NDArray, NDArray, NDArray]:
        count, mean, squares = (np.stack([a[0], b[1]]) for a, b in zip(all_rows, recent, strict=True))
        return count, mean, squares


class SlotMoments:
    """Count, mean and sum of squared deviations of the elements that a filter standardizes, for each slot.

    A slot's statistics do not depend on other slots, so the merged result does not depend on their number.

    Source: Welford (1962), for the n-th row x:  m ← m + (x - m) / n,  S ← S + (x - m_old)(x - m_new)

    Args:
        observation_filter: standardizes the observations.
        slots: the number of slots.
    """

    def __init__(self, observation_filter: MeanStdFilter, slots: int) -> None:
        shapes = {path: (slots, *moments.shape) for path, moments in observation_filter._moments.items()}
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
            with np.errstate(over="ignore", invalid="ignore"):  # raises an error when the episode has ended
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
        """The statistics of a slot, for `MeanStdFilter.merge`; EnvError if they are not finite."""
        state: State = {}
        for path, (means, squares) in self._parts.items():
            _check_moments(path, means[slot], squares[slot])
            arrays = {"count": self._counts[slot : slot + 1][0], "mean": means[slot], "squares": squares[slot]}
            state |= {f"{_leaf_name(path)}{part}": np.array(array) for part, array in arrays.items()}
        return state


def _check_moments(path: Path, mean: NDArray, squares: NDArray) -> None:
    """Raises EnvError unless the statistics of new rows are finite; `path`: of their leaf."""
    if not math.isfinite(np.add.reduce(squares, axis=None)):
        raise EnvError(
            "The observations cannot be standardized: they or their squares are NaN or infinite.",
            "observation filter" + (f", {'/'.join(map(str, path))}" if path else ""),
            f"mean {np.array2string(np.ravel(mean), threshold=10)}",
        ).expected("finite observations", "clip them in the environment")


def _added(
    parts: tuple[NDArray, NDArray, NDArray], count: float, mean: NDArray, squares: NDArray
) -> tuple[NDArray, NDArray, NDArray]:
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


def merged(first: Mapping[str, NDArray], second: Mapping[str, NDArray]) -> State:
    """The statistics of the rows of two states of one filter together."""
    found = dict(first)
    for prefix in [name.removesuffix(_PARTS[0]) for name in first if name.endswith(_PARTS[0])]:
        count, mean, squares = (f"{prefix}{part}" for part in _PARTS)
        if second[count] > 0:
            before = first[count], first[mean], first[squares]
            parts = _added(before, float(second[count]), second[mean], second[squares])
            found |= {name: np.asarray(part) for name, part in zip((count, mean, squares), parts, strict=True)}
    return found


FILTERS = {"NoFilter": NoFilter, "MeanStdFilter": MeanStdFilter}


def make_filter(name: str, observation_space: spaces.Space) -> MeanStdFilter:
    """The observation filter of that name.

    Raises:
        ConfigError: no filter has the name.
    """
    if name in FILTERS:
        return FILTERS[name](observation_space)
    raise ConfigError.unknown("observation filter", name, FILTERS, "observation_filter")


def _leaf_name(path: Path) -> str:
    """The prefix of a leaf's arrays. Slashes in keys are escaped as in a JSON pointer: no two leaves share a prefix."""
    return "".join(f"{str(key).replace('~', '~0').replace('/', '~1')}/" for key in path)
