"""`Minibatches`: the rows of each gradient step, and padding to a few sizes. It imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollax.batch import SampleBatch

TRANSITION = frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TRAJECTORY_ID})
"""The columns that sampling fills for algorithms with a replay buffer."""


def transitions(batch: SampleBatch, valued: str = SampleBatch.NEW_OBS) -> dict[str, Any]:
    """The columns of replayed transitions; `valued` names the column to bootstrap from."""
    names = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.DISCOUNTS, SampleBatch.WEIGHTS)
    return {name: batch[name] for name in (*names, valued)}


def acting_bucket(rows: int) -> int:
    """The padded number of rows of a forward pass: the next power of two."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The padded number of rows of a batch: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


def standardized(x: np.ndarray) -> np.ndarray:
    """[N] float32 of mean 0 and standard deviation 1; zeros if all are equal."""
    x = x.astype(np.float64)  # a float32 mean of equal numbers may differ from them
    return ((x - x.mean()) / (x.std() + 1e-8)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Minibatches:
    """The rows of each gradient step.

    `rows` are [U, B] row indices, -1 for padding; [U, K, M] with K microbatches. U depends on the padded sizes.
    """

    rows: np.ndarray
    steps: int  # the number of gradient steps, at most U
    last_epoch: int  # the first step of the last epoch
    capacity: int  # the padded number of rows

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
        """Each row once per epoch, by default shuffled in each; sizes as in `UpdatePlan`.

        Args:
            few_sizes: whether to pad to powers of two, which compiles less often if `rows` varies much.
            in_order: do not shuffle. Of a transition that a replay sample has twice, the last row sets the priority.
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
        """The same plan, padded so that its capacity and the rows of a pass are multiples of `count`."""
        capacity, width = (-(-size // count) * count for size in (self.capacity, self.rows.shape[-1]))
        return replace(self, rows=_widened(self.rows, width), capacity=capacity)


def _widened(rows: np.ndarray, width: int) -> np.ndarray:
    """The last axis padded with -1."""
    wider = np.full((*rows.shape[:-1], width), -1, rows.dtype)
    wider[..., : rows.shape[-1]] = rows
    return wider
