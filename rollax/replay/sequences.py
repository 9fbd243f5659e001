"""Consecutive rows of a trajectory as padded sequences, for recurrent policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.n_step import dtype_of_returns, n_step_windows
from rollax.core import trees
from rollax.replay.readable import ReadableLinks, ReadableRows


def sequences_from(
    rows: ReadableRows,
    starts: NDArray[np.int64],
    start_weights: NDArray[np.float32],
    length: int,
    burn_in: int,
    *,
    aligned: bool,
    n_step: int | None,
    gamma: float,
) -> SampleBatch:
    """A sequence around each start: burn-in rows before it, rows to learn from, and the observation after them.

    Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning" (R2D2),
        section 2.3: stored states and burn-in. Deviations: sequences begin at given rows, not at every 40th row of a
        trajectory; the first rows of a trajectory are learned from too, with fewer burn-in rows or none.

    Args:
        starts: [B] slots of the first rows to learn from; with `aligned`, of any of them.
        start_weights: [B] the importance weight of each.
        length: T, rows to learn from; fewer if the trajectory ends, or its next row is not stored yet.
        burn_in: rows before the start; fewer if the trajectory begins later, or the rows before it are overwritten.
        aligned: whether trajectories are divided into sequences of T rows from their first row on; one whose first rows
            are overwritten has the others.
        n_step: n, steps of each return; fewer at the end of the sequence; None: all up to its end.
    Returns:
        A padded batch of B sequences of up to burn_in + T + 1 rows: the stored columns, with `state_in` of the first
        row only; n-step `rewards` and `discounts` as in `Replay.sample`; `target_steps`, the position in the
        sequence of the observation to bootstrap from; `bootstrap`, true on the row after the last one unless that one
        terminated (it has the policy's inputs but no action); `weights`, 0 except in the rows to learn from.
    """
    links = rows.links
    to_learn = np.full(len(starts), length)
    if aligned:
        starts = _first_rows(starts, length, links)
        to_learn -= links.number[starts] % length
    slots, lengths, warm_up = _slots(starts, to_learn, burn_in, burn_in + length + 1, links)
    step = np.arange(slots.shape[1])
    real = step < lengths[:, None]
    bootstrap = real & (links.observed[slots] | (step == (warm_up + to_learn)[:, None]))
    acted = real & ~bootstrap
    drawn: dict[str, Any] = {SampleBatch.SEQ_LENS: lengths.astype(np.int32)}
    for name in rows.names:
        if name == SampleBatch.STATE_IN:
            drawn[name] = rows.read(name, slots[:, 0])
        else:
            filled = np.flatnonzero(acted if name == SampleBatch.ACTIONS else real)
            drawn[name] = _padded(rows.read(name, slots.ravel()[filled]), filled, real.size)
    steps, flat = np.flatnonzero(acted), slots.ravel()
    flags = links.terminated[flat], links.truncated[flat], ~acted.ravel()
    windows = n_step_windows(steps, np.arange(real.size) + 1, rows.rewards[flat], *flags, n_step=n_step, gamma=gamma)
    returns = windows.returns.astype(dtype_of_returns(drawn[SampleBatch.REWARDS].dtype))
    drawn[SampleBatch.REWARDS] = _padded(returns, steps, real.size)
    drawn[SampleBatch.DISCOUNTS] = _padded(windows.discounts.astype(np.float32), steps, real.size)
    target_steps = (windows.targets % slots.shape[1]).astype(np.int32)
    drawn[SampleBatch.TARGET_STEPS] = _padded(target_steps, steps, real.size)
    drawn[SampleBatch.BOOTSTRAP] = bootstrap.ravel()
    learned = acted & (step >= warm_up[:, None])
    drawn[SampleBatch.WEIGHTS] = np.where(learned, start_weights[:, None], np.float32(0)).ravel()
    return SampleBatch(drawn)


def _first_rows(slots: NDArray[np.int64], length: int, links: ReadableLinks) -> NDArray[np.int64]:
    """[B] the slot of the first remaining row of the aligned sequence that contains each slot."""
    first, before = slots.astype(np.int64), links.number[slots] % length
    for step in range(length - 1):
        preceding = links.preceding[first]
        first = np.where((before > step) & (preceding >= 0), preceding, first)
    return first


def _slots(
    starts: NDArray[np.int64], to_learn: NDArray[np.int64], burn_in: int, size: int, links: ReadableLinks
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The slots [B, size] of sequences, their lengths [B] and numbers of burn-in rows [B]."""
    first = starts.astype(np.int64)
    warm_up = np.zeros(len(starts), np.int64)
    for _ in range(burn_in):
        before = links.preceding[first]
        there = before >= 0
        first = np.where(there, before, first)
        warm_up += there
    slots = np.empty((len(starts), size), np.int64)
    slots[:, 0] = first
    lengths = np.ones(len(starts), np.int64)
    at = first
    for step in range(1, slots.shape[1]):
        # Nothing follows a termination, or the last observation of a segment.
        following = links.following[at]
        goes_on = (lengths == step) & (following >= 0) & (step <= warm_up + to_learn)
        at = np.where(goes_on, following, at)
        slots[:, step] = at
        lengths += goes_on
    return slots, lengths, warm_up


def _padded(column: trees.Tree, rows: NDArray[np.int64], size: int) -> trees.Tree:
    """A column of `size` rows, with the rows of `column` at `rows` and 0 elsewhere."""

    def padded(leaf: NDArray) -> NDArray:
        out = np.zeros((size, *leaf.shape[1:]), leaf.dtype)
        out[rows] = leaf
        return out

    return trees.tree_map(padded, column)
