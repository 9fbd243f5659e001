"""`Minibatches`: the rows of each gradient step, epoch by epoch, and padding to a few sizes. It imports no JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


def acting_bucket(rows: int) -> int:
    """The padded number of rows of a forward pass: the least power of two that is not below `rows`."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The padded number of rows of a batch: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


@dataclass(frozen=True, slots=True)
class Minibatches:
    """The rows of each gradient step.

    `rows` are row indices [U, B], or [U, K, M] with K microbatches. U depends on the padded sizes. Indices of padding
    are negative: as in NumPy, they count from the end of the `capacity` rows. They select real rows of the same epoch,
    so that statistics over a minibatch, for example in batch normalization, are computed from real rows.
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
        """Returns a plan with each row once per epoch; sizes as in `UpdatePlan`.

        Rows are in random order, unless `in_order` is set or `minibatch_size` is None.

        Args:
            few_sizes: whether to pad to powers of two, which compiles less often if `rows` varies much.
            in_order: do not shuffle. If a replayed batch has a transition twice, the last one then sets its priority.
        """
        capacity = acting_bucket(rows) if few_sizes else training_bucket(rows)
        size = capacity if minibatch_size is None else minibatch_size
        per_epoch = -(-rows // size)
        plan = np.full((epochs * -(-capacity // size), size), -capacity, np.int32)
        for epoch in range(epochs):
            order = np.arange(rows) if in_order or minibatch_size is None else rng.permutation(rows)
            of_epoch = plan.reshape(-1)[epoch * per_epoch * size :][: per_epoch * size]
            of_epoch[:] = np.resize(order, len(of_epoch)) - capacity
            of_epoch[:rows] = order
        if microbatch_size is not None and microbatch_size < size:
            count = -(-size // microbatch_size)
            plan = _widened(plan, count * microbatch_size, capacity).reshape(len(plan), count, microbatch_size)
        return cls(plan, epochs * per_epoch, (epochs - 1) * per_epoch, capacity)

    def divisible(self, count: int) -> Minibatches:
        """The same plan, padded so that its capacity and the last axis of `rows` are multiples of `count`."""
        capacity, width = (-(-size // count) * count for size in (self.capacity, self.rows.shape[-1]))
        rows = np.where(self.rows < 0, self.rows + self.capacity - capacity, self.rows)
        return replace(self, rows=_widened(rows, width, capacity), capacity=capacity)


def _widened(rows: np.ndarray, width: int, capacity: int) -> np.ndarray:
    """`rows` with the last axis padded to `width` by entries from its beginning, as indices of padding."""
    wider = np.resize(np.arange(rows.shape[-1]), width)
    padded = rows[..., wider]
    more = padded[..., rows.shape[-1] :]
    more[more >= 0] -= capacity
    return padded
