"""`Epoch`: the minibatches of one pass over a batch, as slices of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rollax.batch import Columns
from rollax.core import trees
from rollax.policy.update_plan import Minibatches


class Epoch:
    """The minibatches of one pass over a batch: slices of its rows, in the order of the plan."""

    def __init__(self, batch: Columns, plan: Minibatches, first: int, *, keeps_padding: bool) -> None:
        per_epoch = plan.steps - plan.last_epoch
        self._first, self._plan, self._keeps_padding = first, plan, keeps_padding
        rows = plan.rows[first : first + per_epoch].reshape(-1)
        device = next(trees.leaves(dict(batch))).device
        self._mask = torch.from_numpy((rows >= 0).astype(np.float32)).to(device)
        in_order = np.array_equal(rows, np.arange(len(rows)))
        if in_order and len(rows) == plan.capacity:
            self._batch = trees.tree_map(Tensor.clone, dict(batch))  # so that a loss may write to it
            return
        # Padding is negative and last in its minibatch; the modulo turns it into the index of a real row.
        index = torch.from_numpy(rows.astype(np.int64) % plan.capacity).to(device)
        self._batch = trees.tree_map(lambda column: column[index], dict(batch))

    def rows_of(self, step: int) -> Tensor:
        """The indices of the valid rows of a minibatch in the batch."""
        rows = self._plan.rows[step].reshape(-1)
        return torch.from_numpy(rows[rows >= 0].astype(np.int64))

    def minibatch(self, step: int) -> Sequence[tuple[Columns, Tensor]]:
        """Batch and mask of each microbatch that has valid rows."""
        rows = self._plan.rows[step]
        width = rows.shape[-1]
        start = (step - self._first) * rows.size
        parts = []
        for number, part in enumerate(rows.reshape(-1, width)):
            valid = int(np.count_nonzero(part >= 0))
            if not valid:
                break
            count = width if self._keeps_padding else valid
            place = slice(start + number * width, start + number * width + count)
            batch = trees.tree_map(lambda column: column[place], dict(self._batch))  # noqa: B023
            parts.append((batch, self._mask[place]))
        return parts
