"""Burn-in: rows before a sequence that only advance the recurrent state, without a gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.models.outputs import is_recurrent, run_model
from rollax.policy.sequences_as_rows import BurnIn


def after_burn_in(model: Any, columns: Columns) -> Columns:
    """Returns the columns of a batch without the burn-in; `state_in` is the state after it, without a gradient.

    Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning" (R2D2),
        section 3: each network computes its own state from the stored state.
    """
    if not is_recurrent(model) or SampleBatch.BURN_IN not in columns:
        return columns
    burn_in: BurnIn = columns[SampleBatch.BURN_IN]
    graph, arrays = nnx.split(model)

    def step(state: Any, row: BurnIn) -> tuple[Any, None]:
        # A new module for each step, because a step must not change the state, such as random streams, of a module
        # outside of the loop.
        out = run_model(nnx.merge(graph, lax.stop_gradient(arrays)), {**row.inputs, SampleBatch.STATE_IN: state})

        def advanced(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(row.present.reshape(-1, *[1] * (new.ndim - 1)), new, old).astype(old.dtype)

        return jax.tree.map(advanced, tuple(out.state), state), None

    by_step = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), burn_in)
    stored = jax.tree.map(jnp.asarray, tuple(columns[SampleBatch.STATE_IN]))
    state, _ = lax.scan(step, stored, by_step)
    others = {name: column for name, column in columns.items() if name != SampleBatch.BURN_IN}
    return {**others, SampleBatch.STATE_IN: lax.stop_gradient(state)}
