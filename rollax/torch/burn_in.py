"""Burn-in in PyTorch: rows before a sequence that only advance the recurrent state, without a gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.models.outputs import is_recurrent, run_model
from rollax.policy.sequences_as_rows import BurnIn


def after_burn_in(model: Any, columns: Columns) -> Columns:
    """Returns the columns without `burn_in`; `state_in` is the recurrent state after the burn-in, without gradient."""
    if not is_recurrent(model) or SampleBatch.BURN_IN not in columns:
        return columns
    burn_in: BurnIn = columns[SampleBatch.BURN_IN]
    state = tuple(columns[SampleBatch.STATE_IN])
    with torch.no_grad():
        for step, present in enumerate(burn_in.present.unbind(1)):
            inputs = trees.tree_map(partial(torch.select, dim=1, index=step), dict(burn_in.inputs))
            after = run_model(model, {**inputs, SampleBatch.STATE_IN: state}).state
            state = tuple(
                torch.where(present.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(after, state, strict=True)
            )
    others = {name: column for name, column in columns.items() if name != SampleBatch.BURN_IN}
    return {**others, SampleBatch.STATE_IN: state}
