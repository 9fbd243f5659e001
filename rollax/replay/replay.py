"""`Replay`: draws transitions and sequences of rows, wherever they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.n_step import dtype_of_returns
from rollax.core import trees
from rollax.errors import BatchError, ConfigError
from rollax.policy.replayed import SINGLE_ROWS, Draw
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.sequences import sequences_from


class Indexed(Protocol):
    """Numbers by slot: an array, or an object that computes them when they are read."""

    def __getitem__(self, slots: NDArray, /) -> NDArray: ...


class ReadableLinks(Protocol):
    """How slots follow each other; see `Links`."""

    @property
    def filled(self) -> int: ...
    @property
    def number(self) -> Indexed: ...
    @property
    def preceding(self) -> Indexed: ...
    @property
    def following(self) -> Indexed: ...
    @property
    def observed(self) -> Indexed: ...
    @property
    def terminated(self) -> Indexed: ...
    @property
    def truncated(self) -> Indexed: ...
    def indices(self, slots: NDArray) -> NDArray[np.int64]: ...


class ReadableRows(Protocol):
    """Columns by slot; see `StoredRows`."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def links(self) -> ReadableLinks: ...
    @property
    def rewards(self) -> Indexed: ...
    @property
    def bytes_per_slot(self) -> int: ...
    def read(self, name: str, slots: NDArray[np.integer]) -> trees.Tree: ...


class Replay(ABC):
    """Draws transitions of n steps, or sequences of rows, by default all with equal probability.

    A subclass sets `_rows`, which are in memory or elsewhere.

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
        """Bytes of the arrays, unused slots included; 0 before the first fragment."""
        return self.capacity * self.bytes_per_slot

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one slot; 0 before the first fragment."""
        return self._rows.bytes_per_slot

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored columns."""
        return self._rows.names

    def observations(self, count: int) -> Iterator[trees.Tree]:
        """Yields all stored observations in the order of their slots, at most `count` at once."""
        filled = self._rows.links.filled
        for start in range(0, filled, count):
            slots = self._with_observation(np.arange(start, min(start + count, filled)))
            if len(slots):
                yield self._rows.read(SampleBatch.OBS, slots)

    def _with_observation(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots among these that hold an observation."""
        return slots

    @property
    def total_priority(self) -> float:
        """The sum of the priorities of all transitions; here each counts 1."""
        return float(len(self))

    def sample(
        self, count: int, rng: np.random.Generator, *, beta: float = 1.0, draw: Draw = SINGLE_ROWS
    ) -> SampleBatch:
        """A batch of `count` transitions or sequences, as `draw` says; see `transitions` and `sequences`.

        Args:
            count: how many transitions or sequences, drawn with replacement.
            rng: random generator.
            beta: exponent of the importance weights; without priorities they are 1.
            draw: how the transitions or sequences are drawn.
        Raises:
            BatchError: no transition can be drawn yet.
        """
        return draw.draw(self, count, rng, beta)

    def draw_slots(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """[count] slots of transitions, with replacement; raises BatchError if there is none yet."""
        if not len(self):
            raise BatchError(
                "The replay buffer has nothing to draw.", self.where, "no transition with all of its n steps"
            ).fix("add fragments before drawing")
        return self._draw(count, rng)

    def transitions(self, slots: NDArray[np.int64], beta: float = 1.0) -> SampleBatch:
        """The transitions that begin in [B] slots, which `draw_slots` returned.

        Returns:
            A batch of B rows. All columns are copies, which may be changed:
            - `obs`, `actions` and the other stored columns;
            - `rewards`: the n-step returns;
            - `new_obs`: the observation after the n steps;
            - `discounts`: the factor of the value of `new_obs`, which is γ^n, or γ^m where the trajectory was truncated
              after m < n steps, or 0 where it terminated (`new_obs` then has no meaning);
            - `weights`: the importance weights;
            - `indices`: for `update_priorities`.
        """
        returns, discounts, targets = self._windows(slots)
        columns = {name: self._rows.read(name, slots) for name in self._rows.names}
        columns[SampleBatch.REWARDS] = returns.astype(dtype_of_returns(columns[SampleBatch.REWARDS].dtype))
        columns[SampleBatch.NEW_OBS] = self._rows.read(SampleBatch.OBS, targets)
        columns[SampleBatch.DISCOUNTS] = discounts
        columns[SampleBatch.WEIGHTS] = self._weights(slots, beta)
        columns[SampleBatch.INDICES] = self._rows.links.indices(slots)
        return SampleBatch(columns)

    def sequences(self, slots: NDArray[np.int64], draw: SequenceDraw, beta: float = 1.0) -> SampleBatch:
        """The sequences of the rows in [B] slots, which `draw_slots` returned.

        A sequence with k drawable rows is drawn k times as often as a sequence with one, so its `weights` are divided
        by k. Without priorities, the weights have a mean of 1, and the rows of all sequences count the same.

        Returns:
            A padded batch of B sequences of up to `draw.burn_in + draw.length + 1` rows:
            - the stored columns, with `state_in` of the first row only;
            - n-step `rewards` and `discounts`, as in `transitions`, with fewer steps at the end of the sequence;
            - `target_steps`: the position in the sequence of the observation to bootstrap from;
            - `bootstrap`: true on a further row after the last one, which has inputs of the policy but no action; there
              is no such row if the last row terminated;
            - `weights`: 0 except in the rows to learn from;
            - `burn_in` [B, burn_in]: true for the first rows, which only advance the state;
            - `indices`: for `update_priorities`; -1 except in the rows that the sequence is drawn by.
        """
        weights = self._weights(slots, beta)
        return sequences_from(self._rows, slots, weights, draw, n_step=self.n_step, gamma=self.gamma)

    def read(self, column: str, slots: NDArray[np.int64]) -> trees.Tree:
        """A copy of the rows of a stored column at [B] slots."""
        return self._rows.read(column, slots)

    def rows_ahead(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """[B] the number of stored rows of the same trajectory after each of these rows.

        The time is proportional to the longest of these trajectories.
        """
        return self._walk(slots, None)[1]

    def slots_ahead(self, slots: NDArray[np.int64], steps: NDArray[np.integer]) -> NDArray[np.int64]:
        """[B] the slots of the rows `steps` [B] rows later in the trajectory, at most `rows_ahead`."""
        return self._walk(slots, steps)[0]

    def _walk(self, slots: NDArray[np.int64], steps: NDArray[np.integer] | None) -> tuple[NDArray, NDArray]:
        """[B] the rows `steps` rows later, or the last stored rows of the trajectories; and [B] how many rows later."""
        links = self._rows.links
        at, walked = slots.astype(np.int64), np.zeros(len(slots), np.int64)
        walking = np.arange(len(at))
        while len(walking):
            if steps is not None:
                walking = walking[walked[walking] < steps[walking]]
            following = links.following[at[walking]].astype(np.int64)
            goes_on = (following >= 0) & ~links.observed[following]
            walking, following = walking[goes_on], following[goes_on]
            at[walking] = following
            walked[walking] += 1
        return at, walked

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:  # noqa: B027
        """Without effect: all transitions are equally likely. See `PrioritizedReplay.update_priorities`."""

    @abstractmethod
    def _windows(self, slots: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
        """[K] the returns of transitions, and the discounts and slots of the observations after them."""

    @abstractmethod
    def _can_draw(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] whether the transitions that begin in these slots can be drawn."""

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


def by_index(errors: NDArray[np.floating], indices: NDArray[np.integer]) -> NDArray[np.floating]:
    """The errors of the rows with these indices: the one error of a sequence is repeated for each of its rows."""
    return np.repeat(errors, len(indices) // max(len(errors), 1))


def check_range(name: str, value: float, fits: bool, expected: str, where: str) -> None:
    """Raises ConfigError unless a setting of a buffer fits."""
    if not fits:
        raise ConfigError.out_of_range(name, f"{name} of {where}", value, expected)
