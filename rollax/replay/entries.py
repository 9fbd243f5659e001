"""What a fragment brings into a replay buffer: its rows, and what was observed after its segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import BatchError


@dataclass(frozen=True)
class Entries:
    """M entries, each for one ring buffer slot: the rows of a fragment, and an observation after each segment.

    After a termination there is no such observation.

    Args:
        rows: [N] the entries of the fragment's rows.
        ends: [E] the entries of what was observed after segments.
        segments: [E] the numbers of these segments.
        trajectory: [M] the trajectory of each entry.
        first: [M] true on the first row of a segment.
        terminated: [M] true where the trajectory terminated with this row.
        truncated: [M] true where it was truncated after this row.
        observed: [M] true where no step was made: at `ends`.
        may_go_on: [M] true where later fragments may go on from: at the `ends` that follow no truncation.
    """

    rows: NDArray[np.int64]
    ends: NDArray[np.int64]
    segments: NDArray[np.int64]
    trajectory: NDArray[np.int64]
    first: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    observed: NDArray[np.bool_]
    may_go_on: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.trajectory)

    def of(self, column: NDArray, after: NDArray) -> NDArray:
        """[M] an array of the fragment's rows, and of what came after each segment, in the order of the entries."""
        joined = np.empty((len(self), *column.shape[1:]), column.dtype)
        joined[self.rows], joined[self.ends] = column, after[self.segments]
        return joined


def entries_of(fragment: Fragment) -> Entries:
    """The entries of a fragment with the columns `trajectory_id`, `terminateds` and `truncateds`.

    Raises:
        BatchError: a trajectory ends inside a segment.
    """
    terminated, truncated = (fragment[name] for name in (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS))
    inside = (terminated | truncated) & ~fragment.last
    if inside.any():
        raise BatchError(
            "A trajectory ends inside a segment.",
            where=f"row {int(np.flatnonzero(inside)[0])} of {len(fragment)}",
            expected="a segment's last row wherever terminateds or truncateds is true",
            fix="name the row among the fragment's ends, and give what came after it",
        )
    segments = np.flatnonzero(fragment.goes_on)
    positions = np.arange(len(fragment))
    rows = positions + np.searchsorted(fragment.ends[segments], positions)
    ends = rows[fragment.ends[segments]] + 1
    size = len(rows) + len(ends)

    def filled(at: NDArray, values: NDArray | bool, dtype: type = np.bool_) -> NDArray:
        column = np.zeros(size, dtype)
        column[at] = values
        return column

    trajectory = filled(rows, fragment[SampleBatch.TRAJECTORY_ID], np.int64)
    trajectory[ends] = trajectory[ends - 1]
    cut_off = truncated & ~terminated
    return Entries(
        rows,
        ends,
        segments,
        trajectory,
        filled(rows[fragment.starts], True),
        filled(rows, terminated),
        filled(rows, cut_off),
        filled(ends, True),
        filled(ends, ~cut_off[fragment.ends[segments]]),
    )


def without_repeats(fragment: Fragment) -> Iterator[Fragment]:
    """Parts of a fragment in which no trajectory has two segments: several fragments may have been concatenated."""
    trajectories = fragment[SampleBatch.TRAJECTORY_ID][fragment.ends]
    if len(np.unique(trajectories)) == len(trajectories):
        yield fragment
        return
    start, seen = 0, set()
    for trajectory, first in zip(trajectories.tolist(), fragment.starts.tolist(), strict=True):
        if trajectory in seen:
            yield fragment[start:first]
            start, seen = first, set()
        seen.add(trajectory)
    yield fragment[start:]


def same_rows(first: trees.Tree, second: trees.Tree) -> NDArray[np.bool_]:
    """[K] true where the rows of two columns of K rows and the same structure are equal."""

    def equal(ours: NDArray, theirs: NDArray) -> NDArray[np.bool_]:
        return (ours == theirs).reshape(len(ours), -1).all(axis=1)

    # By key: Dicts may name theirs in another order.
    return np.logical_and.reduce(list(trees.leaves(trees.tree_map(equal, first, second))))
