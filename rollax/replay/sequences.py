"""Consecutive rows of a trajectory as padded sequences, for recurrent policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.n_step import dtype_of_returns, n_step_windows
from rollax.core import trees
from rollax.policy.sequence_draw import SequenceDraw

if TYPE_CHECKING:
    from rollax.replay.replay import ReadableLinks, ReadableRows

_NOT_DRAWN_BY = -1


def sequences_from(
    rows: ReadableRows,
    drawn: NDArray[np.int64],
    drawn_weights: NDArray[np.float32],
    draw: SequenceDraw,
    *,
    n_step: int | None,
    gamma: float,
) -> SampleBatch:
    """The sequence that each drawn row belongs to; see `Replay.sequences`.

    Args:
        drawn: [B] slots of the drawn rows.
        drawn_weights: [B] the importance weights of these rows.
        n_step: n, steps of each return, or fewer at the end of the sequence; None: all up to the end.
    """
    links, stride = rows.links, draw.length - draw.overlap
    starts = _first_rows(drawn, stride, links)
    missing = links.number[starts].astype(np.int64) % stride  # first rows of the sequence that are overwritten
    to_learn = draw.length - missing
    slots, lengths, warm_up = _slots(starts, to_learn, draw.burn_in, draw.burn_in + draw.length + 1, links)
    step = np.arange(slots.shape[1])
    real = step < lengths[:, None]
    bootstrap = real & (links.observed[slots] | (step == (warm_up + to_learn)[:, None]))
    acted = real & ~bootstrap
    batch: dict[str, Any] = {SampleBatch.SEQ_LENS: lengths.astype(np.int32)}
    for name in rows.names:
        if name == SampleBatch.STATE_IN:
            batch[name] = rows.read(name, slots[:, 0])
        else:
            filled = np.flatnonzero(acted if name == SampleBatch.ACTIONS else real)
            batch[name] = _padded(rows.read(name, slots.ravel()[filled]), filled, real.size)
    steps, flat = np.flatnonzero(acted), slots.ravel()
    flags = links.terminated[flat], links.truncated[flat], ~acted.ravel()
    windows = n_step_windows(steps, np.arange(real.size) + 1, rows.rewards[flat], *flags, n_step=n_step, gamma=gamma)
    returns = windows.returns.astype(dtype_of_returns(batch[SampleBatch.REWARDS].dtype))
    batch[SampleBatch.REWARDS] = _padded(returns, steps, real.size)
    batch[SampleBatch.DISCOUNTS] = _padded(windows.discounts.astype(np.float32), steps, real.size)
    target_steps = (windows.targets % slots.shape[1]).astype(np.int32)
    batch[SampleBatch.TARGET_STEPS] = _padded(target_steps, steps, real.size)
    batch[SampleBatch.BOOTSTRAP] = bootstrap.ravel()
    if draw.burn_in:
        batch[SampleBatch.BURN_IN] = step[: draw.burn_in] < warm_up[:, None]
    learned = acted & (step >= warm_up[:, None])
    drawn_by = learned & (step < (warm_up + stride - missing)[:, None])
    batch[SampleBatch.WEIGHTS] = _weights(drawn_weights, learned, drawn_by)
    batch[SampleBatch.INDICES] = np.where(drawn_by, links.indices(slots), _NOT_DRAWN_BY).ravel()
    return SampleBatch(batch)


def _weights(
    drawn_weights: NDArray[np.float32], learned: NDArray[np.bool_], drawn_by: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """[B·L] the weights of the rows to learn from; 0 in other rows.

    A sequence that is drawn by k rows is drawn k times as often as by one row, so its weights are divided by k. The
    weights of all rows are then multiplied by one number, so that their mean is 1 if all drawn weights are 1.
    """
    sizes, chances = learned.sum(axis=1), drawn_by.sum(axis=1)
    scale = sizes.sum() / (sizes / chances).sum() / chances
    weights = np.where(learned, drawn_weights[:, None], np.float32(0)) * scale[:, None]
    return weights.astype(np.float32).ravel()


def _first_rows(slots: NDArray[np.int64], stride: int, links: ReadableLinks) -> NDArray[np.int64]:
    """[B] the slot of the first stored row of the sequence that each slot belongs to."""
    first, before = slots.astype(np.int64), links.number[slots] % stride
    for step in range(stride - 1):
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
    padded = trees.zeros_like(column, size)
    trees.put(padded, rows, column)
    return padded
