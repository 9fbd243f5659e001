"""Minibatches: which rows make up which gradient step, padding to a few sizes, and means over microbatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Part = Callable[[Any, jax.Array], tuple[Any, Any, jax.Array]]
"""(state, rows) -> (means over the valid rows, state, number of valid rows)."""


def acting_bucket(rows: int) -> int:
    """The number of rows that a forward pass is padded to: the next power of two."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The number of rows that a batch is padded to: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


def standardized(x: np.ndarray) -> np.ndarray:
    """[N] float32 of mean 0 and deviation 1; zeros where all are equal."""
    x = x.astype(np.float64)  # in float32 the mean of equal numbers may miss them, and the quotient be noise
    return ((x - x.mean()) / (x.std() + 1e-8)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Minibatches:
    """Which rows make up which gradient step.

    Args:
        rows: [U, B] row indices, -1 for padding; U is a bound that depends on the bucket alone. [U, K, M] where each
            step's gradient is accumulated over K microbatches of M rows.
        steps: how many of the U are to be made.
        last_epoch: the first step of the last epoch.
        capacity: rows that the columns are padded to.
    """

    rows: np.ndarray
    steps: int
    last_epoch: int
    capacity: int

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        rows: int,
        minibatch_size: int | None,
        epochs: int,
        *,
        microbatch_size: int | None = None,
        few_sizes: bool = False,
        in_order: bool = False,
    ) -> Minibatches:
        """Each row once per epoch, in a new order each time.

        Args:
            rng: shuffles.
            rows: how many there are.
            minibatch_size: rows of one gradient step; None for all of them.
            epochs: passes over the rows.
            microbatch_size: rows of a gradient step that are looked at together; None for all of them.
            few_sizes: where `rows` varies much from batch to batch: pads to powers of two, which compiles less often.
            in_order: the rows as they stand, in every epoch.
        """
        capacity = acting_bucket(rows) if few_sizes else training_bucket(rows)
        size = capacity if minibatch_size is None else minibatch_size
        per_epoch = -(-rows // size)
        plan = np.full((epochs * -(-capacity // size), size), -1, np.int32)
        for epoch in range(epochs):
            order = np.arange(rows) if in_order or minibatch_size is None else rng.permutation(rows)
            plan.reshape(-1)[epoch * per_epoch * size :][:rows] = order
        if microbatch_size is not None and microbatch_size < size:
            count = -(-size // microbatch_size)
            plan = _widened(plan, count * microbatch_size).reshape(len(plan), count, microbatch_size)
        return cls(plan, epochs * per_epoch, (epochs - 1) * per_epoch, capacity)

    def divisible(self, count: int) -> Minibatches:
        """The same plan with as much more padding as it takes to share its rows out evenly.

        Args:
            count: what the capacity and the rows that are looked at together are to be multiples of.
        """
        capacity, width = (-(-size // count) * count for size in (self.capacity, self.rows.shape[-1]))
        return replace(self, rows=_widened(self.rows, width), capacity=capacity)


def _widened(rows: np.ndarray, width: int) -> np.ndarray:
    """The last axis padded with -1."""
    wider = np.full((*rows.shape[:-1], width), -1, rows.dtype)
    wider[..., : rows.shape[-1]] = rows
    return wider


def weighted_mean(part: Part, state: Any, rows: jax.Array) -> tuple[Any, Any]:
    """The means over all valid rows, computed one part after another, so that one part at a time is in memory.

    Source: mean = Σ_k n_k mean_k / Σ_k n_k. A part without valid rows counts for nothing, even where its means are NaN,
    and leaves the state as it is; the means of nothing are 0.

    Args:
        part: a pure function.
        state: arrays that go from part to part.
        rows: [K, M] the rows of each part.
    Returns:
        The means, and the state after the last part.
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
