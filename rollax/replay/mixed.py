"""Draws from several replay buffers, in given proportions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.columns import PER_SEQUENCE
from rollax.core import trees
from rollax.errors import BatchError
from rollax.policy.replayed import SINGLE_ROWS, Draw
from rollax.replay.replay import Replay, by_index


@dataclass
class Part:
    """One of the buffers of a `MixedReplay`.

    Args:
        buffer: the buffer.
        weight: the proportion of draws from the buffer, at least 0.
        prepared: a function of each batch drawn from the buffer, such as an observation filter.
    Attributes:
        drawn: the number of transitions drawn so far.
    """

    buffer: Replay
    weight: float
    prepared: Callable[[SampleBatch], SampleBatch] | None = None
    drawn: int = 0


class MixedReplay:
    """Draws each transition from one of several buffers, chosen by weight; buffers without transitions are left out.

    It has the `sample` and `update_priorities` of `Replay`. Drawn `indices` encode the buffer of each transition. Each
    buffer computes its own importance weights.
    """

    def __init__(self, parts: Sequence[Part], where: str = "replay buffer") -> None:
        self.parts = list(parts)
        self.where = where

    def __repr__(self) -> str:
        return f"MixedReplay({', '.join(f'{part.weight:g}: {part.buffer!r}' for part in self.parts)})"

    def __len__(self) -> int:
        """Number of transitions that can be drawn."""
        return sum(len(part.buffer) for part in self.parts if part.weight)

    def sample(
        self, count: int, rng: np.random.Generator, *, beta: float = 1.0, draw: Draw = SINGLE_ROWS
    ) -> SampleBatch:
        """Transitions or sequences, each from one of the buffers; see `Replay.sample`."""
        chances = np.array([part.weight if len(part.buffer) else 0.0 for part in self.parts])
        if not chances.any():
            raise BatchError("The replay buffers have nothing to draw.", self.where, repr(self)).expected(
                "a buffer with transitions, and a weight above 0", "add fragments before drawing"
            )

        def drawn(number: int, count: int) -> SampleBatch:
            part = self.parts[number]
            batch = part.buffer.sample(count, rng, beta=beta, draw=draw)
            part.drawn += int(np.count_nonzero(batch[SampleBatch.WEIGHTS]))  # in sequences, the rows to learn from
            batch[SampleBatch.INDICES] = batch[SampleBatch.INDICES] * len(self.parts) + number
            return batch if part.prepared is None else part.prepared(batch)

        if np.count_nonzero(chances) == 1:  # a single choice uses no random number
            return drawn(int(np.flatnonzero(chances)[0]), count)
        which = rng.choice(len(self.parts), count, p=chances / chances.sum())
        batches = [drawn(number, int(np.count_nonzero(which == number))) for number in np.unique(which).tolist()]
        # The order of the choices: minibatches are consecutive parts of the draw.
        order = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        return _in_order(batches, order)

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:
        """Sets the priorities of drawn transitions or sequences; see `PrioritizedReplay.update_priorities`."""
        errors = by_index(np.asarray(errors), indices)
        for number, part in enumerate(self.parts):
            own = indices % len(self.parts) == number
            if own.any():
                part.buffer.update_priorities(indices[own] // len(self.parts), errors[own])


def _in_order(batches: Sequence[SampleBatch], order: NDArray[np.int64]) -> SampleBatch:
    """The rows, or the sequences, of several batches in another order."""
    length = batches[0].max_seq_len
    rows = (order[:, None] * length + np.arange(length)).ravel()
    columns: dict[str, Any] = {}
    for name in batches[0]:
        if all(name in batch for batch in batches):
            column = trees.concat([batch[name] for batch in batches])
            columns[name] = trees.index(column, order if name in PER_SEQUENCE else rows)
    return SampleBatch(columns)
