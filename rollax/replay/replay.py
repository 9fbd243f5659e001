"""`Replay`: draws transitions and sequences of rows, wherever they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.n_step import dtype_of_returns
from rollax.core import trees
from rollax.errors import BatchError, ConfigError
from rollax.replay.readable import ReadableRows
from rollax.replay.sequences import sequences_from


class Replay(ABC):
    """Draws transitions of n steps, or sequences around them, by default all with equal probability.

    A subclass sets `_rows`.

    Args:
        capacity: slots of rows and of observations without an action.
        gamma: γ, the discount of n-step returns.
        n_step: n; None: all steps up to the end of the trajectory, bootstrapped where it is truncated.
        where: the buffer's name in error messages.
    Raises:
        ConfigError: a number out of range.
    """

    _rows: ReadableRows

    def __init__(self, capacity: int, *, gamma: float, n_step: int | None, where: str) -> None:
        check_range("capacity", capacity, capacity >= 1, "at least 1", where)
        check_range("n_step", 1 if n_step is None else n_step, n_step is None or n_step >= 1, "at least 1", where)
        check_range("gamma", gamma, 0 <= gamma <= 1, "from 0 to 1", where)
        self.capacity, self.gamma, self.n_step, self.where = capacity, gamma, n_step, where

    def __repr__(self) -> str:
        return f"{type(self).__name__}(transitions={len(self)}, capacity={self.capacity}, n_step={self.n_step})"

    @abstractmethod
    def __len__(self) -> int:
        """Number of transitions that can be drawn."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, used or not; 0 before the first fragment."""
        return self.capacity * self.bytes_per_slot

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of a transition; 0 before the first fragment."""
        return self._rows.bytes_per_slot

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns."""
        return self._rows.names

    def observations(self, count: int) -> Iterator[trees.Tree]:
        """All stored observations in order, at most `count` at once."""
        filled = self._rows.links.filled
        for start in range(0, filled, count):
            slots = self._with_observation(np.arange(start, min(start + count, filled)))
            if len(slots):
                yield self._rows.read(SampleBatch.OBS, slots)

    def _with_observation(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these slots that hold an observation."""
        return slots

    @property
    def total_priority(self) -> float:
        """The sum of the priorities of all transitions; here each counts 1."""
        return float(len(self))

    def sample(self, count: int, rng: np.random.Generator, *, beta: float = 1.0) -> SampleBatch:
        """Transitions drawn with replacement.

        Args:
            count: B, how many.
            rng: draws them.
            beta: exponent of the importance weights; without priorities they are 1.
        Returns:
            A batch of B rows: `obs`, `actions` and the stored columns; `rewards`, the n-step returns; `new_obs`, the
            observation after the n steps; `discounts`, the factor of its value: γ^n, a smaller power where a truncation
            came first, 0 where the trajectory terminated (`new_obs` is then some observation); `weights`; `indices`,
            for `update_priorities`.
        Raises:
            BatchError: no transition can be drawn yet.
        """
        slots = self._slots_drawn(count, rng)
        returns, discounts, targets = self._windows(slots)
        columns = {name: self._rows.read(name, slots) for name in self._rows.names}
        columns[SampleBatch.REWARDS] = returns.astype(dtype_of_returns(columns[SampleBatch.REWARDS].dtype))
        columns[SampleBatch.NEW_OBS] = self._rows.read(SampleBatch.OBS, targets)
        columns[SampleBatch.DISCOUNTS] = discounts
        columns[SampleBatch.WEIGHTS] = self._weights(slots, beta)
        columns[SampleBatch.INDICES] = self._rows.links.indices(slots)
        return SampleBatch(columns)

    def sample_sequences(
        self,
        count: int,
        length: int,
        rng: np.random.Generator,
        *,
        burn_in: int = 0,
        beta: float = 1.0,
        aligned: bool = False,
    ) -> SampleBatch:
        """Sequences of rows for recurrent policies, each around a transition drawn like in `sample`.

        Args:
            count: B, how many.
            length: T, rows of each sequence to learn from.
            rng: draws them.
            burn_in: rows before the sequence, which only advance the policy's state.
            beta: as for `sample`.
            aligned: True divides trajectories into sequences of T rows from their first row on, and takes the sequence
                that contains the drawn transition; so trajectories of up to T rows are drawn whole. A sequence of k
                rows is then drawn k times as often as a sequence of one row: its `weights` are divided by k, and have a
                mean of 1, so that all rows count the same. False: sequences begin with the drawn transition.
        Returns:
            A padded batch, see `sequences_from`, with the `indices` of the drawn transition in all rows of a sequence.
        Raises:
            BatchError: no transition can be drawn yet.
        """
        starts = self._slots_drawn(count, rng)
        weights = self._weights(starts, beta)
        windows: dict[str, Any] = {"n_step": self.n_step, "gamma": self.gamma}
        drawn = sequences_from(self._rows, starts, weights, length, burn_in, aligned=aligned, **windows)
        drawn[SampleBatch.INDICES] = np.repeat(self._rows.links.indices(starts), drawn.max_seq_len)
        if aligned:
            drawn[SampleBatch.WEIGHTS] = _by_length(drawn[SampleBatch.WEIGHTS], drawn.max_seq_len)
        return drawn

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:  # noqa: B027
        """Without effect: all transitions are equally likely. See `PrioritizedReplay.update_priorities`."""

    @abstractmethod
    def _windows(self, slots: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
        """[K] the returns of transitions, and the discounts and slots of the observations after them."""

    @abstractmethod
    def _can_draw(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] whether the transitions that begin in these slots can be drawn."""

    def _slots_drawn(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if not len(self):
            raise BatchError(
                "The replay buffer has nothing to draw.", self.where, "no transition with all of its n steps"
            ).fix("add fragments before drawing")
        return self._draw(count, rng)

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """[count] slots of transitions."""
        # Rejection: its time does not grow with the buffer.
        filled, drawn = self._rows.links.filled, np.zeros(0, np.int64)
        while len(drawn) < count:
            slots = rng.integers(filled, size=2 * (count - len(drawn)) + 8)
            drawn = np.concatenate([drawn, slots[self._can_draw(slots)]])
        return drawn[:count]

    def _weights(self, slots: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        """[K] importance weights of these transitions."""
        return np.ones(len(slots), np.float32)


def _by_length(weights: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """The weights of the rows of padded sequences, each divided by the number of rows to learn from in its sequence."""
    of_sequences = weights.reshape(-1, length)
    learned = of_sequences > 0
    sizes = learned.sum(axis=1)
    # Their mean over the rows to learn from does not change.
    divided = of_sequences * (sizes.sum() / len(sizes) / sizes)[:, None]
    return divided.astype(np.float32).ravel()


def check_range(name: str, value: float, fits: bool, expected: str, where: str) -> None:
    """Raises ConfigError unless a setting of a buffer fits."""
    if not fits:
        raise ConfigError.out_of_range(name, f"{name} of {where}", value, expected)
