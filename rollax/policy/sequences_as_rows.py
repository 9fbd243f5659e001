"""Sequences as rows for a loss, with the rows of a burn-in apart, in NumPy, JAX or PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.batch.columns import PER_SEQUENCE
from rollax.core import trees

_INPUTS = (SampleBatch.OBS, SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS)


class BurnIn(NamedTuple):
    """The rows before B sequences: up to M for each, the earliest first."""

    inputs: Columns  # name -> [B, M, ...], what the model reads
    present: Any  # [B, M] false for padding


def with_burn_in_apart(sequences: Columns, arange: Callable[[int], Any]) -> Columns:
    """Returns sequences [B, M + T, ...] as [B, T, ...], with the burn-in rows as a `BurnIn` in the column `burn_in`."""
    if SampleBatch.BURN_IN not in sequences:
        return sequences
    present = sequences[SampleBatch.BURN_IN]
    rows = {name: column for name, column in sequences.items() if name not in PER_SEQUENCE}
    most, count = present.shape[1], present.sum(1)[:, None]
    steps = count + arange(next(trees.leaves(rows)).shape[1] - most)
    of_sequences = arange(len(present))[:, None]
    kept = trees.tree_map(lambda leaf: leaf[of_sequences, steps], rows)
    if SampleBatch.TARGET_STEPS in kept:
        kept[SampleBatch.TARGET_STEPS] = (kept[SampleBatch.TARGET_STEPS] - count).clip(0)
    inputs = {name: trees.tree_map(lambda leaf: leaf[:, :most], rows[name]) for name in _INPUTS if name in rows}
    lengths = sequences[SampleBatch.SEQ_LENS] - count[:, 0]
    return {**sequences, **kept, SampleBatch.SEQ_LENS: lengths, SampleBatch.BURN_IN: BurnIn(inputs, present)}


def as_rows(sequences: Columns, mask: Any, arange: Callable[[int], Any] = np.arange) -> tuple[dict[str, Any], Any]:
    """Returns sequences [B, T, ...] as rows [B·T, ...], and their mask [B] as a mask [B·T] that is 0 on padding too.

    Rows of burn-in are moved to a `BurnIn`. `target_steps`, positions in a sequence, become `target_rows`, positions in
    all rows. `arange` is the function of the library of the sequences: NumPy, JAX or PyTorch.
    """
    sequences = with_burn_in_apart(sequences, arange)
    lengths = sequences[SampleBatch.SEQ_LENS]
    rows = {name: column for name, column in sequences.items() if name not in PER_SEQUENCE}
    width = next(trees.leaves(rows)).shape[1]
    if SampleBatch.TARGET_STEPS in rows:
        steps = rows.pop(SampleBatch.TARGET_STEPS)
        rows[SampleBatch.TARGET_ROWS] = arange(len(steps))[:, None] * width + steps
    rows = trees.tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
    real = mask[:, None] * (arange(width) < lengths[:, None])
    memory = {name: sequences[name] for name in (SampleBatch.STATE_IN, SampleBatch.BURN_IN) if name in sequences}
    return {**rows, **memory}, real.reshape(-1)
