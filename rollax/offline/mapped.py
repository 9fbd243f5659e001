"""A replay buffer whose rows are in files: recorded data that is larger than memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.n_step import n_step_windows
from rollax.core import trees
from rollax.offline.column_files import MappedColumns
from rollax.replay.replay import Replay

_MOST_BYTES_TOUCHED = 64 << 20
_ROWS_READ = 4096
_ROWS_AT_ONCE = 1 << 16


class MappedReplay(Replay):
    """Draws from the columns of `MappedColumns`, with the results of a `UniformReplay` that stores these rows.

    Memory holds recently read pages, and 17 bytes for each trajectory: its first and last row, and whether it
    terminated. With `n_step=None` it also holds 12 bytes for each row: its return and discount.
    """

    def __init__(
        self, columns: MappedColumns, *, gamma: float = 0.99, n_step: int | None = 1, where: str = "recorded data"
    ) -> None:
        super().__init__(columns.slots, gamma=gamma, n_step=n_step, where=where)
        self._mapped = columns
        self._rows = MappedRows(columns)
        self._links = self._rows.links
        self._count = int((columns.lasts - columns.starts + 1).sum())
        self._whole = _whole_returns(columns, gamma) if n_step is None else None

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Unmaps the files; nothing can be drawn afterwards."""
        self._mapped.close()

    def observations(self, count: int) -> Iterator[trees.Tree]:
        for obs in super().observations(count):
            yield obs
            self._mapped.release()

    def rows_ahead(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._links.ends_of(slots)[0] - slots

    def slots_ahead(self, slots: NDArray[np.int64], steps: NDArray[np.integer]) -> NDArray[np.int64]:
        return slots + steps

    def _windows(self, slots: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
        lasts, terminated = self._links.ends_of(slots)
        if self._whole is not None:
            returns, discounts = self._whole
            return returns[slots], discounts[slots], np.where(terminated, lasts, lasts + 1)
        assert self.n_step is not None
        steps = slots[:, None] + np.arange(self.n_step + 1)
        steps = np.minimum(steps, (lasts + ~terminated)[:, None])  # not beyond the trajectory
        flat, positions = steps.ravel(), np.arange(steps.size)
        over = (steps == lasts[:, None]).ravel()
        ends = np.repeat(terminated, self.n_step + 1)
        windows = n_step_windows(
            *(positions[:: self.n_step + 1], positions + 1, self._rows.read(SampleBatch.REWARDS, flat)),
            *(over & ends, over & ~ends, (steps > lasts[:, None]).ravel()),
            n_step=self.n_step,
            gamma=self.gamma,
        )
        return windows.returns, windows.discounts.astype(np.float32), flat[windows.targets]

    def _can_draw(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~self._links.observed[slots]


class _Computed:
    """An array whose elements are computed when they are read."""

    def __init__(self, compute: Callable[[Any], NDArray]) -> None:
        self._compute = compute

    def __getitem__(self, slots: Any) -> NDArray:
        return self._compute(np.asarray(slots))


class MappedLinks:
    """The part of `Links` that drawing reads, for rows that are stored trajectory by trajectory."""

    def __init__(self, columns: MappedColumns) -> None:
        self._starts, self._lasts, self._terminated = columns.starts, columns.lasts, columns.terminated
        self.filled = columns.slots
        self.observed = _Computed(lambda slots: slots > self.ends_of(slots)[0])
        self.terminated = _Computed(lambda slots: self._is_last(slots, True))
        self.truncated = _Computed(lambda slots: self._is_last(slots, False))
        self.following = _Computed(self._following)
        self.number = _Computed(lambda slots: slots - self._starts[self._of(slots)])
        self.preceding = _Computed(lambda slots: np.where(self.number[slots] == 0, -1, slots - 1))

    def ends_of(self, slots: NDArray) -> tuple[NDArray, NDArray]:
        """The last rows of the trajectories of these slots, and whether they terminated."""
        trajectories = self._of(slots)
        return self._lasts[trajectories], self._terminated[trajectories]

    def indices(self, slots: NDArray) -> NDArray[np.int64]:
        return np.asarray(slots, np.int64)

    def _of(self, slots: NDArray) -> NDArray:
        return np.searchsorted(self._starts, slots, side="right") - 1

    def _is_last(self, slots: NDArray, terminated: bool) -> NDArray[np.bool_]:
        lasts, ended = self.ends_of(slots)
        return (slots == lasts) & (ended == terminated)

    def _following(self, slots: NDArray) -> NDArray:
        lasts, terminated = self.ends_of(slots)
        return np.where(slots < lasts + ~terminated, slots + 1, -1)


class MappedRows:
    """The part of `StoredRows` that drawing reads, for rows in column files."""

    def __init__(self, columns: MappedColumns) -> None:
        self._mapped = columns
        self._touched = 0  # bytes of pages read since the last release
        self.names = tuple(columns.columns)
        self.links = MappedLinks(columns)
        self.rewards = _Computed(lambda slots: self.read(SampleBatch.REWARDS, slots))
        leaves = [leaf for column in columns.columns.values() for leaf in trees.leaves(column)]
        self.bytes_per_slot = sum(leaf.itemsize * int(np.prod(leaf.shape[1:])) for leaf in leaves)

    def read(self, name: str, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of one column's rows at K slots."""
        return trees.tree_map(lambda leaf: self._taken(leaf, slots), self._mapped.columns[name])

    def _taken(self, column: NDArray, slots: NDArray[np.integer]) -> NDArray:
        """The rows at these slots, read in the order of the file; pages are released from time to time."""
        order = np.argsort(slots)
        out = np.empty((len(slots), *column.shape[1:]), column.dtype)
        for start in range(0, len(order), _ROWS_READ):
            rows = order[start : start + _ROWS_READ]
            out[rows] = np.take(column, slots[rows], axis=0)
            self._touched += len(rows) * max(column[:1].nbytes, mmap.PAGESIZE)
            if self._touched > _MOST_BYTES_TOUCHED:
                self._mapped.release()
                self._touched = 0
        return out


def _whole_returns(columns: MappedColumns, gamma: float) -> Sequence[NDArray]:
    """[slots] returns up to the end of each trajectory, and the discounts of the values after it."""
    rewards = columns.columns[SampleBatch.REWARDS]
    returns, discounts = np.zeros(columns.slots), np.zeros(columns.slots, np.float32)
    ends = columns.lasts + ~columns.terminated
    first = 0
    while first < len(ends):
        past = max(int(np.searchsorted(ends, columns.starts[first] + _ROWS_AT_ONCE)), first + 1)
        start, stop = int(columns.starts[first]), int(ends[past - 1]) + 1
        size = stop - start
        over, cut, observed = (np.zeros(size + 1, np.bool_) for _ in range(3))
        lasts, terminated = columns.lasts[first:past] - start, columns.terminated[first:past]
        over[lasts], cut[lasts] = terminated, ~terminated
        observed[(lasts + 1)[~terminated]] = True
        rows = np.flatnonzero(~observed[:size])
        windows = n_step_windows(
            *(rows, np.arange(size + 1) + 1, np.append(rewards[start:stop], 0)),
            *(over, cut, np.append(observed, False)),
            n_step=None,
            gamma=gamma,
        )
        returns[start + rows], discounts[start + rows] = windows.returns, windows.discounts
        first = past
    return returns, discounts
