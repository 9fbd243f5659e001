"""A replay buffer whose transitions are all equally likely to be drawn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.errors import BatchError, ConfigError
from rollax.replay.frames import StackedFrames
from rollax.replay.sequences import first_rows, sequences_from
from rollax.replay.stored_rows import Addition, StoredRows
from rollax.state import array, wrong

log = logging.getLogger("rollax.replay")
_WINDOW_BYTES = 8 + 4 + 8 + 1  # return, discount, target, drawable


class UniformReplay:
    """Keeps the newest rows, each observation once, and draws transitions of n steps.

    Source: Lin (1992), "Self-improving reactive agents based on reinforcement learning, planning and teaching",
        doi:10.1007/BF00992699; Mnih et al. (2015), doi:10.1038/nature14236.

    What is added are the rows of rollout workers: trajectory segments with what came after them in `bootstrap` rows. A
    segment may go on in a later batch; windows of n steps then run across. A transition can be drawn as soon as its n
    steps, or all to the end of the trajectory, are there. A trajectory's number (`trajectory_id`) must be unique for
    ever.

    The capacity counts places. A row takes one; so does what was observed after a truncation, or last in a trajectory
    that still goes on; and an image that is kept beside those of the rows.

    Args:
        capacity: places for rows; memory is taken when the first batch comes.
        gamma: γ, by which the rewards of the n steps are discounted.
        n_step: n.
        columns: of the batch, to be kept and drawn beside `obs`, `actions` and `rewards`.
        frames: where observations are stacks of images; None: keep observations as they are.
        where: the buffer's name in error messages.
    Raises:
        ConfigError: a number out of range.
    """

    def __init__(
        self,
        capacity: int,
        *,
        gamma: float = 0.99,
        n_step: int = 1,
        columns: Sequence[str] = (),
        frames: StackedFrames | None = None,
        where: str = "replay buffer",
    ) -> None:
        check_range("capacity", capacity, capacity >= 1, "at least 1", where)
        check_range("n_step", n_step, n_step >= 1, "at least 1", where)
        check_range("gamma", gamma, 0 <= gamma <= 1, "from 0 to 1", where)
        self.capacity, self.gamma, self.n_step, self.where = capacity, gamma, n_step, where
        self._rows = StoredRows(capacity, columns, frames, self._own_bytes_per_place(), where)
        self._count = 0
        self._drawable = np.zeros(0, np.bool_)
        self._waiting = np.zeros(0, np.int64)  # rows whose window is not all there yet
        self._adding: Addition | None = None  # what has been put only in part, where nothing is being added

    def __repr__(self) -> str:
        return f"{type(self).__name__}(transitions={len(self)}, capacity={self.capacity}, n_step={self.n_step})"

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        self._finish()
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, used or not; 0 before the first batch."""
        return self.capacity * self._rows.bytes_per_place

    @property
    def total_priority(self) -> float:
        """The sum over all transitions of what they are drawn in proportion to; here each counts 1."""
        return float(len(self))

    def add(self, batch: SampleBatch) -> None:
        """Adds a batch of a rollout worker, over the oldest rows.

        Args:
            batch: flat rows with `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `trajectory_id` and
                `bootstrap` (see `add_bootstrap_rows`), and the columns to be kept.
        Raises:
            BatchError: a column is missing or unlike those before, or a segment's end lacks what came after it.
            NonFiniteError: a NaN, or infinity in anything but an observation.
            ConfigError: the capacity is larger than the memory, or smaller than the batch.
        """
        if not batch.count:
            return
        self._finish()
        added = self._rows.addition(batch)
        if not len(self._drawable):
            self._make_room()
        self._adding = added
        self._rows.put(added)
        self._give_up(added.given_up)
        self._waiting = self._waiting[~np.isin(self._waiting, added.given_up)]
        self._complete(np.concatenate([self._waiting, added.new_rows]))
        self._adding = None

    def _finish(self) -> None:
        """Where adding a batch was interrupted, leaves out that batch, and nothing else but what it was put over."""
        added = self._adding
        if added is not None:
            log.warning("%s: adding %d rows was interrupted; they are left out.", self.where, len(added.rows))
            gone = self._rows.take_back(added)
            self._drawable[gone] = False
            self._drawable &= ~np.isin(self._targets, gone)  # a window that ran across into what is left out
            self._waiting = self._waiting[:0]  # no trajectory goes on from where it was cut off
            self._count = int(np.count_nonzero(self._drawable))
            self._weigh_anew()
            self._adding = None

    def sample(self, count: int, rng: np.random.Generator, *, beta: float = 1.0) -> SampleBatch:
        """Transitions drawn with replacement.

        Args:
            count: B, how many.
            rng: draws them.
            beta: how far importance weights make up for priorities; where there are none, the weights are 1.
        Returns:
            A batch of B rows: `obs`, `actions` and the columns that are kept; `rewards`, discounted and summed over the
            n steps; `new_obs`, what was observed after them; `discounts`, the factor of its value: γ^n, a smaller
            power where a truncation came first, 0 where the trajectory terminated (`new_obs` is then some observation);
            `weights`; `indices`, for `update_priorities`.
        Raises:
            BatchError: there is nothing to draw from yet.
        """
        places = self._places_drawn(count, rng)
        columns = self._rows.columns.read(places)
        columns[SampleBatch.REWARDS] = self._returns[places].astype(columns[SampleBatch.REWARDS].dtype)
        columns[SampleBatch.NEW_OBS] = self._rows.columns.read_obs(self._targets[places])
        columns[SampleBatch.DISCOUNTS] = self._discounts[places]
        columns[SampleBatch.WEIGHTS] = self._weights(places, beta)
        columns[SampleBatch.INDICES] = self._rows.links.indices(places)
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
        """Sequences of rows for recurrent policies, each around a transition drawn as by `sample`.

        Args:
            count: B, how many.
            length: T, the rows of each to learn from.
            rng: draws them.
            burn_in: rows before those, to warm the policy's state up with.
            beta: as for `sample`.
            aligned: trajectories are cut into sequences of T rows from their first row on, and the one that holds the
                drawn transition is taken: whole trajectories, where they are not longer. False: the drawn transition
                is the first to learn from.
        Returns:
            A padded batch as `sequences_from` says; `indices` is that of the drawn transition in all its rows.
        Raises:
            BatchError: there is nothing to draw from yet.
        """
        starts = self._places_drawn(count, rng)
        weights = self._weights(starts, beta)
        links, columns = self._rows.links, self._rows.columns
        first = first_rows(starts, length, links) if aligned else starts
        drawn = sequences_from(first, weights, length, burn_in, links, columns)
        drawn[SampleBatch.INDICES] = np.repeat(links.indices(starts), drawn.max_seq_len)
        return drawn

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:
        """Sets how likely transitions are to be drawn; here it does nothing: all are equally likely.

        Args:
            indices: [K] `indices` of what was drawn.
            errors: [K] the error that each had when it was learned from.
        """

    def get_state(self) -> dict[str, Any]:
        """Everything, as arrays and values that JSON can hold."""
        self._finish()
        state = self._rows.get_state()
        if state:
            whole = self._drawable[: self._rows.links.filled].copy()
            whole[self._waiting] = True
            state["whole"] = whole
        return state

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `set_state` would refuse; nothing is changed.

        Raises:
            CheckpointError: it does not fit this buffer.
            ConfigError: the capacity is larger than the memory.
        """
        rows = _of_rows(state)
        self._rows.check_state(rows)
        if rows:
            array(state, "whole", self.where, shape=state["links"]["observed"].shape, dtype=np.bool_)
        elif "whole" in state:
            raise wrong(self.where, sorted(state), "rows, or nothing about them")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of a buffer of the same capacity, columns and frames returned; {} empties it.

        `gamma` and `n_step` may differ: the windows of all rows are made anew.

        Raises:
            CheckpointError: it does not fit this buffer.
            ConfigError: the capacity is larger than the memory.
        """
        self.check_state(state)
        self._rows.set_state(_of_rows(state))
        self._adding = None
        self._count, self._drawable, self._waiting = 0, self._drawable[:0], self._waiting[:0]
        if "whole" in state:
            self._make_room()
            self._complete(np.flatnonzero(state["whole"]))

    def _own_bytes_per_place(self) -> int:
        """Memory needed beside that of the rows."""
        return _WINDOW_BYTES

    def _make_room(self) -> None:
        """Takes the memory beside that of the rows."""
        self._returns = np.zeros(self.capacity, np.float64)
        self._discounts = np.zeros(self.capacity, np.float32)
        self._targets = np.zeros(self.capacity, np.int64)
        self._drawable = np.zeros(self.capacity, np.bool_)

    def _complete(self, rows: NDArray[np.int64]) -> None:
        """Makes transitions of those rows whose windows are all there; the others wait."""
        windows = self._rows.links.windows(rows, self._rows.columns.rewards, self.n_step, self.gamma)
        done = windows.complete
        places = rows[done]
        self._returns[places] = windows.returns[done]
        self._discounts[places] = windows.discounts[done]
        self._targets[places] = windows.targets[done]
        self._drawable[places] = True
        self._count += len(places)
        # What does not go on will not be whole.
        self._waiting = rows[~done & self._rows.links.is_open(windows.targets)]
        self._begin(places)

    def _give_up(self, places: NDArray[np.int64]) -> None:
        """These places hold no transitions any more."""
        self._count -= int(np.count_nonzero(self._drawable[places]))
        self._drawable[places] = False

    def _begin(self, places: NDArray[np.int64]) -> None:
        """These places hold transitions now."""

    def _weigh_anew(self) -> None:
        """Some places may hold transitions, or none, that `_begin` and `_give_up` were not told of."""

    def _places_drawn(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if not len(self):
            raise BatchError(
                "There is nothing to draw from a replay buffer.",
                where=self.where,
                got="no transition whose n steps are all there",
                fix="add batches before drawing",
            )
        return self._draw(count, rng)

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """[count] places of transitions."""
        filled = self._rows.links.filled
        if 2 * self._count < filled:
            return rng.choice(np.flatnonzero(self._drawable[:filled]), count)
        # Drawing again instead of what is no transition takes no time that grows with the buffer.
        drawn = np.zeros(0, np.int64)
        while len(drawn) < count:
            places = rng.integers(filled, size=2 * (count - len(drawn)) + 8)
            drawn = np.concatenate([drawn, places[self._drawable[places]]])
        return drawn[:count]

    def _weights(self, places: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        """[K] importance weights of these transitions."""
        return np.ones(len(places), np.float32)


def _of_rows(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a buffer's state that is that of its rows; of an empty buffer there is none."""
    return {name: state[name] for name in ("links", "columns") if name in state}


def check_range(name: str, value: float, fits: bool, expected: str, where: str) -> None:
    """Raises ConfigError unless a setting of a buffer fits."""
    if not fits:
        raise ConfigError(
            f"{name} is out of range.", where=f"{name} of {where}", got=value, expected=expected, fix=f"correct {name}"
        )
