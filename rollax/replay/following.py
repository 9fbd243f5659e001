"""How the rows of a batch follow each other: which come next in the same trajectory, and which are only looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import BatchError


@dataclass(frozen=True)
class Rows:
    """The rows of a batch that are to be kept, M of them, in the batch's order.

    Args:
        index: [M] their positions in the batch.
        previous: [M] the position in `index` of the row before, in the same trajectory; -1 where the batch holds none.
        trajectory: [M] the trajectory of each.
        terminated: [M] true where the trajectory ended with it.
        truncated: [M] true where it was cut off after it, by a limit of time.
        observed: [M] true where nothing was done: what came after a segment, seen but not acted on yet.
        may_go_on: [M] true where more rows of the trajectory may come: what was observed after a segment that is not
            truncated.
    """

    index: NDArray[np.int64]
    previous: NDArray[np.int64]
    trajectory: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    observed: NDArray[np.bool_]
    may_go_on: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.index)


def rows_of(batch: SampleBatch) -> Rows:
    """The batch's rows and how they follow each other.

    A row of what came after a segment is left out where the batch goes on from there: the next row observes the same.

    Args:
        batch: trajectory segments in time order, with the columns `obs`, `trajectory_id`, `terminateds`, `truncateds`
            and, where a segment is not terminated, a `bootstrap` row after it.
    Raises:
        BatchError: a segment that is not terminated has no bootstrap row after it.
    """
    # By trajectory, so that rows that follow each other are neighbours, even where a batch holds several fragments.
    order = np.argsort(batch[SampleBatch.TRAJECTORY_ID], kind="stable")
    trajectory = np.asarray(batch[SampleBatch.TRAJECTORY_ID])[order]
    observed = batch[SampleBatch.BOOTSTRAP][order] if SampleBatch.BOOTSTRAP in batch else np.zeros(len(order), np.bool_)
    terminated = batch[SampleBatch.TERMINATEDS][order] & ~observed
    truncated = batch[SampleBatch.TRUNCATEDS][order] & ~observed & ~terminated
    same_trajectory = np.append(trajectory[1:] == trajectory[:-1], False)
    final = observed & np.append(False, (truncated & same_trajectory)[:-1])
    followed = same_trajectory & ~terminated & ~final
    _check_ends(order, observed, ~terminated & ~observed, truncated, followed)

    again = np.flatnonzero(observed & followed)
    going_on = same_rows(batch[SampleBatch.OBS], order[again], batch[SampleBatch.OBS], order[again + 1])
    followed[again] = going_on
    stays = np.ones(len(order), np.bool_)
    stays[again[going_on]] = False
    chain = np.cumsum(np.append(True, ~followed[:-1]))[: len(order)]
    return _in_order_of_batch(
        stays, order, chain, trajectory, terminated, truncated, observed, observed & ~final & ~same_trajectory
    )


def same_rows(
    first: trees.Tree, first_rows: NDArray[np.integer], second: trees.Tree, second_rows: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """[K] true where K rows of one column equal K rows of another of the same structure."""
    same = np.ones(len(first_rows), np.bool_)
    if not len(same):
        return same

    def equal(ours: NDArray, theirs: NDArray) -> NDArray[np.bool_]:
        rows = np.take(ours, first_rows, axis=0) == np.take(theirs, second_rows, axis=0)
        return rows.reshape(len(same), -1).all(axis=1)

    for part in trees.leaves(trees.tree_map(equal, first, second)):  # by key: Dicts may name theirs in another order
        same &= part
    return same


def _in_order_of_batch(
    stays: NDArray[np.bool_], order: NDArray[np.int64], chain: NDArray[np.int64], *columns: NDArray
) -> Rows:
    """The rows that stay; the arguments are sorted by trajectory, the result is in the order of the batch."""
    stay = np.flatnonzero(stays)
    chains = chain[stay]
    linked = np.append(False, chains[1:] == chains[:-1])[: len(stay)]
    sorted_back = np.argsort(order[stay])
    place = np.empty(len(stay), np.int64)
    place[sorted_back] = np.arange(len(stay))
    previous = np.where(linked, np.append(-1, place[:-1])[: len(stay)], -1)
    chosen = stay[sorted_back]
    return Rows(order[chosen], previous[sorted_back], *(column[chosen] for column in columns))


def _check_ends(
    order: NDArray[np.int64],
    observed: NDArray[np.bool_],
    goes_on: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    followed: NDArray[np.bool_],
) -> None:
    """Refuses rows that need a next observation and have none; the arguments are sorted by trajectory."""
    observed_next = np.append(observed[1:], False)
    bad = goes_on & ~(followed & (observed_next | ~truncated))
    if bad.any():
        raise BatchError(
            "A trajectory segment that is not terminated ends without the observation that came after it.",
            where=f"row {int(order[bad].min())} of {len(order)}",
            expected="a row with bootstrap=True after it, of the same trajectory: what would have been acted on next",
            fix="add such rows with add_bootstrap_rows, and cut no batch between a segment and the row that follows it",
        )
