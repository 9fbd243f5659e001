"""Rows of experience cut into sequences of equal length for recurrent policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.core import trees

if TYPE_CHECKING:
    from rollax.batch.sample_batch import SampleBatch


def padded_columns(batch: SampleBatch, length: int, begins: np.ndarray) -> dict[str, Any]:
    """Copies of the columns as padded sequences of `length` rows; see `SampleBatch.sequences`.

    A new sequence starts at each row where `begins`, [count] bool, is true, and after `length` rows.
    """
    row = np.arange(batch.count)
    offset = (row - np.maximum.accumulate(np.where(begins, row, 0))) % length
    starts = np.flatnonzero(offset == 0)
    sequence = np.cumsum(offset == 0) - 1
    seq_lens = np.bincount(sequence).astype(np.int32)
    target = sequence * length + offset

    columns: dict[str, Any] = {batch.SEQ_LENS: seq_lens}
    for name, column in batch.items():
        if name == batch.STATE_IN:
            columns[name] = trees.index(column, starts)
        else:
            columns[name] = padded = trees.zeros_like(column, len(seq_lens) * length)
            trees.put(padded, target, column)
    return columns


def trajectory_starts(batch: SampleBatch) -> np.ndarray:
    """[count] bool: the rows at which a trajectory starts."""
    starts = np.zeros(batch.count, dtype=bool)
    starts[:1] = True
    starts[1:] = batch[batch.EPS_ID][1:] != batch[batch.EPS_ID][:-1]
    for name in (batch.TRAJECTORY_ID, batch.AGENT_ID):
        if name in batch:
            starts[1:] |= batch[name][1:] != batch[name][:-1]
    for name in (batch.TERMINATEDS, batch.TRUNCATEDS, batch.BOOTSTRAP):
        if name in batch:
            starts[1:] |= batch[name][:-1].astype(bool)
    if batch.T in batch:
        grows = batch[batch.T][1:] > batch[batch.T][:-1]
        if batch.BOOTSTRAP in batch:
            grows |= batch[batch.BOOTSTRAP][1:].astype(bool)  # t is 0 in bootstrap rows
        starts[1:] |= ~grows
    return starts
