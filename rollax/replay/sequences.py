"""Consecutive rows of a trajectory as padded sequences, for recurrent policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import SampleBatch
from rollax.replay.columns import Columns
from rollax.replay.links import Links

_DONE_THERE = (SampleBatch.ACTIONS, SampleBatch.REWARDS)


def sequences_from(
    starts: NDArray[np.int64],
    start_weights: NDArray[np.float32],
    length: int,
    burn_in: int,
    links: Links,
    columns: Columns,
) -> SampleBatch:
    """A sequence around each start: rows before it to warm up with, rows to learn from, and what came after them.

    Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning" (R2D2),
        section 2.3: stored states and burn-in. Deviations: sequences begin where the caller says, not at every 40th
        row of a trajectory; the first rows of a trajectory are learned from, with fewer rows or none before them to
        warm up with.

    Args:
        starts: [B] places of the first rows to learn from.
        start_weights: [B] the importance weight of each.
        length: T, rows to learn from; fewer where the trajectory ends, or does not go on yet.
        burn_in: rows before the start, fewer where the trajectory began, or the rows before it have been given up.
        links: how the rows are linked.
        columns: what they hold.
    Returns:
        A padded batch of B sequences, each with room for burn_in + T + 1 rows: the columns that are kept, with
        `state_in` of the first row only; `terminateds` and `truncateds`; `bootstrap`, true on the row after the last,
        unless that one terminated: of it only the observation and what goes with it means something; `weights`, 0 but
        in the rows to learn from.
    """
    places, lengths, warm_up = _places(starts, length, burn_in, links)
    step = np.arange(places.shape[1])
    real = step < lengths[:, None]
    place = places[real]
    bootstrap = links.observed[places] | (step == (warm_up + length)[:, None])
    learned = real & ~bootstrap & (step >= warm_up[:, None])
    acted = ~bootstrap[real]
    size = real.size
    drawn: dict[str, Any] = {SampleBatch.SEQ_LENS: lengths.astype(np.int32)}
    for name in columns.names:
        if name == SampleBatch.STATE_IN:
            drawn[name] = columns.read_column(name, places[:, 0])
        else:
            column = columns.read_column(name, place)
            drawn[name] = _padded(column, np.flatnonzero(real), size, acted if name in _DONE_THERE else None)
    for name, flags in ((SampleBatch.TERMINATEDS, links.terminated), (SampleBatch.TRUNCATEDS, links.truncated)):
        drawn[name] = (flags[places] & real & ~bootstrap).ravel()
    drawn[SampleBatch.BOOTSTRAP] = (bootstrap & real).ravel()
    drawn[SampleBatch.WEIGHTS] = np.where(learned, start_weights[:, None], np.float32(0)).ravel()
    return SampleBatch(drawn)


def first_rows(places: NDArray[np.int64], length: int, links: Links) -> NDArray[np.int64]:
    """[B] the first row of the sequence that each place is in, where trajectories are cut into sequences of `length`
    rows.

    A trajectory of which the beginning has been given up counts from the first row that is left.

    Args:
        places: [B] places of rows.
        length: T.
        links: how the rows are linked.
    """
    before = np.zeros(len(places), np.int64)
    first, walking = places.astype(np.int64), np.arange(len(places))
    while len(walking):
        preceding = links.preceding[first[walking]]
        walking = walking[preceding >= 0]
        first[walking] = preceding[preceding >= 0]
        before[walking] += 1
    at = places.astype(np.int64)
    for step in range(min(length - 1, int(before.max(initial=0)))):
        at = np.where(before % length > step, links.preceding[at], at)
    return at


def _places(
    starts: NDArray[np.int64], length: int, burn_in: int, links: Links
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """[B, burn_in + length + 1] the places of each sequence's rows, its length, and the rows before its start."""
    first = starts.astype(np.int64)
    warm_up = np.zeros(len(starts), np.int64)
    for _ in range(burn_in):
        before = links.preceding[first]
        there = before >= 0
        first = np.where(there, before, first)
        warm_up += there
    places = np.empty((len(starts), burn_in + length + 1), np.int64)
    places[:, 0] = first
    lengths = np.ones(len(starts), np.int64)
    at = first
    for step in range(1, places.shape[1]):
        # After the last row of a trajectory that terminated, and after what was only observed, nothing follows.
        following = links.following[at]
        goes_on = (lengths == step) & (following >= 0) & (step <= warm_up + length)
        at = np.where(goes_on, following, at)
        places[:, step] = at
        lengths += goes_on
    return places, lengths, warm_up


def _padded(column: trees.Tree, rows: NDArray[np.int64], size: int, meant: NDArray[np.bool_] | None) -> trees.Tree:
    """A column of `size` rows, those of `column` at `rows` and 0 elsewhere, and where they are not `meant`."""

    def padded(leaf: NDArray) -> NDArray:
        out = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        if meant is None:
            out[rows] = leaf
        else:
            out[rows[meant]] = leaf[meant]
        return out

    return trees.tree_map(padded, column)
