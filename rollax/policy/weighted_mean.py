"""`weighted_mean`: means over the rows of several microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Part = Callable[[Any, jax.Array], tuple[Any, Any, jax.Array]]
"""(state, rows) -> (means over the valid rows, state, number of valid rows)."""


def weighted_mean(part: Part, state: Any, rows: jax.Array) -> tuple[Any, Any]:
    """The means over all valid rows [K, M], and the state from the last part with valid rows.

    mean = Σ_k n_k mean_k / Σ_k n_k. Parts without valid rows are skipped, even if their means are NaN; without any
    valid rows the means are 0.
    """
    shapes = jax.eval_shape(part, state, rows[0])[0]
    zeros = jax.tree.map(lambda mean: jnp.zeros(mean.shape, jnp.promote_types(mean.dtype, jnp.float32)), shapes)

    def add(carry: tuple[Any, Any, jax.Array], rows: jax.Array) -> tuple[tuple[Any, Any, jax.Array], None]:
        sums, state, total = carry
        means, new_state, count = part(state, rows)
        valid = count > 0
        sums = jax.tree.map(lambda total, mean: total + jnp.where(valid, count * mean, 0.0), sums, means)
        state = jax.tree.map(lambda new, old: jnp.where(valid, new, old), new_state, state)
        return (sums, state, total + count), None

    (sums, state, total), _ = lax.scan(add, (zeros, state, jnp.float32(0)), rows)
    return jax.tree.map(lambda value: value / jnp.maximum(total, 1), sums), state
