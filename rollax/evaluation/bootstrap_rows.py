"""Rows that stand for what came after a trajectory segment, so that a learner can give it a value of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.policy.policy import Segments

_TRAJECTORY = (SampleBatch.EPS_ID, SampleBatch.TRAJECTORY_ID, SampleBatch.AGENT_ID)


def add_bootstrap_rows(batch: SampleBatch, segments: Segments) -> SampleBatch:
    """A copy of the batch with one row more after each segment that does not end in a termination.

    Such a row holds what its policy would have acted on next: the observation and, of a policy with memory, what goes
    with it. It belongs to the trajectory that it follows. All else in it is 0; nothing is to be learned from it.

    Args:
        batch: N rows, with `terminateds`.
        segments: where their trajectories end, and what came after.
    Returns:
        The batch with the column `bootstrap`: true on the new rows.
    """
    ends = np.flatnonzero(segments.last)
    goes_on = np.flatnonzero(~batch[SampleBatch.TERMINATEDS][ends])
    ends = ends[goes_on]
    rows = np.arange(batch.count)
    old_rows = rows + np.searchsorted(ends, rows)  # each is moved down by the segments before it that go on
    new_rows = old_rows[ends] + 1
    following = {SampleBatch.OBS: segments.next_obs, **segments.next_memory}
    size = batch.count + len(ends)
    columns = {}
    for name, column in batch.items():
        columns[name] = grown = trees.tree_map(_zeros(size), column)
        trees.put(grown, old_rows, column)
        if name in following:
            trees.put(grown, new_rows, trees.index(following[name], goes_on))
        elif name in _TRAJECTORY:
            trees.put(grown, new_rows, trees.index(column, ends))
    columns[SampleBatch.BOOTSTRAP] = np.zeros(size, np.bool_)
    columns[SampleBatch.BOOTSTRAP][new_rows] = True
    return SampleBatch(columns, env_steps=batch.env_steps)


def _zeros(rows: int) -> Callable[[np.ndarray], np.ndarray]:
    def make(leaf: np.ndarray) -> np.ndarray:
        shape = (rows, *leaf.shape[1:])
        return np.full(shape, None) if leaf.dtype == object else np.zeros(shape, leaf.dtype)

    return make
