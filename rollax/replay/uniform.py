"""A replay buffer that draws all transitions with equal probability."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.batch.columns import check_batch
from rollax.core.stored_values import read_array, wrong_value
from rollax.replay.fragment_checks import without_repeats
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Addition
from rollax.replay.replay import Replay
from rollax.replay.stored_rows import StoredRows

log = logging.getLogger("rollax.replay")


class UniformReplay(Replay):
    """Stores the newest rows, each observation once, and draws transitions of n steps.

    Source: Lin (1992), "Self-improving reactive agents based on reinforcement learning, planning and teaching",
        doi:10.1007/BF00992699; Mnih et al. (2015), doi:10.1038/nature14236.

    Rows are added as fragments. A trajectory may continue in a later fragment; windows of n steps then span both. A
    transition can be drawn as soon as its n steps, or all up to the end of the trajectory, are stored. A
    `trajectory_id` must never be used again.

    The capacity counts ring buffer slots. Each row takes one, as does the observation after a truncation, the last
    observation of a running trajectory, and each image that is stored in addition to the rows' own images.

    Args:
        capacity: slots; memory is taken for the first fragment.
        gamma: γ, the discount of n-step returns.
        n_step: n; None: all steps up to the end of the trajectory, bootstrapped where it is truncated.
        columns: further columns to store and draw, beside `obs`, `actions` and `rewards`.
        frames: how observations are stacked from images; None: observations are stored unchanged.
        where: the buffer's name in error messages.
    Raises:
        ConfigError: a number out of range.
    """

    _rows: StoredRows
    _own_bytes_per_slot = 8 + 4 + 8 + 1  # return, discount, target, drawable

    def __init__(
        self,
        capacity: int,
        *,
        gamma: float = 0.99,
        n_step: int | None = 1,
        columns: Sequence[str] = (),
        frames: StackedFrames | None = None,
        where: str = "replay buffer",
    ) -> None:
        super().__init__(capacity, gamma=gamma, n_step=n_step, where=where)
        self._rows = StoredRows(capacity, columns, frames, self._own_bytes_per_slot, where)
        self._count = 0
        self._drawable = np.zeros(0, np.bool_)
        self._waiting = np.zeros(0, np.int64)  # rows whose window is incomplete
        self._waiting_of = np.zeros(0, np.int64)  # the trajectories of these rows
        self._warned = False  # whether a warning of rows that are overwritten too early was logged
        self._adding: Addition | None = None  # a fragment that is stored only in part, if `add` was interrupted

    def __len__(self) -> int:
        self._finish()
        return self._count

    def slots_for(self, fragments: Iterable[Fragment]) -> int:
        """The capacity that holds all of these fragments of whole trajectories."""
        return max(sum(self._rows.slots_for(fragment) for fragment in fragments), 1)

    def add(self, fragment: SampleBatch) -> None:
        """Adds a fragment of a rollout worker, over the oldest rows.

        Args:
            fragment: a `Fragment` with `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `trajectory_id` and
                the columns to be stored; fragments of one worker may have been concatenated, the earlier ones first.
        Raises:
            BatchError: the argument is not a `Fragment`; a column is missing, has objects, or differs from earlier
                columns; or a trajectory ends inside a segment.
            NonFiniteError: a NaN, or infinity in anything but an observation.
            ConfigError: the buffer does not fit into the memory, or the fragment does not fit into the buffer.
        """
        check_batch(fragment, SampleBatch, self.where)
        if not fragment.count:
            return
        self._finish()
        for part in without_repeats(self._rows.checked(fragment)):
            added = self._rows.addition(part)
            if not len(self._drawable):
                self._make_room()
            self._adding = added
            self._rows.put(added)
            self._overwrite(added.overwritten)
            lost, numbers = np.isin(self._waiting, added.overwritten), part[SampleBatch.TRAJECTORY_ID]
            if np.count_nonzero(lost):
                if not self._warned and np.isin(self._waiting_of[lost], numbers).any():  # the trajectory still runs
                    self._warn_of_short_buffer()
                self._waiting, self._waiting_of = self._waiting[~lost], self._waiting_of[~lost]
            rows = np.concatenate([self._waiting, added.row_slots])
            self._complete(rows, np.concatenate([self._waiting_of, numbers]))
            self._adding = None

    def _warn_of_short_buffer(self) -> None:
        self._warned = True
        log.warning(
            "%s: rows are overwritten before the %s stored, so they are never drawn. Raise buffer_size%s.",
            self.where,
            "end of their trajectory is" if self.n_step is None else f"{self.n_step} rows after them are",
            ", or set n_step" if self.n_step is None else "",
        )

    def _finish(self) -> None:
        """Removes the fragment whose `add` was interrupted; the rows that it has overwritten are lost, too."""
        added = self._adding
        if added is not None:
            log.warning("%s: adding %d rows was interrupted; they are not stored.", self.where, len(added.rows))
            gone = self._rows.links.take_back(added)
            self._drawable[gone] = False
            self._drawable &= ~np.isin(self._targets, gone)  # windows that reach into the removed rows
            # No trajectory continues from the end of the removed fragment.
            self._waiting, self._waiting_of = self._waiting[:0], self._waiting_of[:0]
            self._count = int(np.count_nonzero(self._drawable))
            self._reset_priorities()
            self._adding = None

    def get_state(self) -> dict[str, Any]:
        """The whole state, as arrays and JSON values."""
        self._finish()
        state = self._rows.get_state()
        if state:
            whole = self._drawable[: self._rows.links.filled].copy()
            whole[self._waiting] = True
            state["whole"] = whole
        return state

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises the errors of `set_state` for this state; nothing is changed.

        Raises:
            CheckpointError: the state does not fit this buffer.
            ConfigError: the buffer does not fit into the memory.
        """
        rows = _of_rows(state)
        self._rows.check_state(rows)
        if rows:
            read_array(state, "whole", self.where, shape=state["links"]["observed"].shape, dtype=np.bool_)
        elif "whole" in state:
            raise wrong_value(self.where, sorted(state), "rows, or nothing about them")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of a buffer of the same capacity, columns and frames returned; {} empties it.

        `gamma` and `n_step` may differ: the windows of all rows are computed again. For the errors see `check_state`.
        """
        self.check_state(state)
        self._rows.set_state(_of_rows(state))
        self._adding = None
        self._count, self._drawable = 0, self._drawable[:0]
        self._waiting, self._waiting_of = self._waiting[:0], self._waiting_of[:0]
        if "whole" in state:
            self._make_room()
            rows = np.flatnonzero(state["whole"])
            self._complete(rows, np.full(len(rows), -1))  # without trajectories, so that all windows are computed

    def _make_room(self) -> None:
        """Allocates the arrays of this class, in addition to the arrays of the stored rows."""
        self._returns = np.zeros(self.capacity, np.float64)
        self._discounts = np.zeros(self.capacity, np.float32)
        self._targets = np.zeros(self.capacity, np.int64)
        self._drawable = np.zeros(self.capacity, np.bool_)

    def _windows(self, slots: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
        return self._returns[slots], self._discounts[slots], self._targets[slots]

    def _complete(self, rows: NDArray[np.int64], trajectories: NDArray[np.int64]) -> None:
        """Stores the complete windows of rows; the others wait."""
        links = self._rows.links
        # A window up to the end of its trajectory is computed only at the end: earlier attempts take quadratic time.
        running = links.is_running(trajectories) if self.n_step is None else np.zeros(len(rows), np.bool_)
        tried = rows[~running]
        windows = links.windows(tried, self._rows.rewards, self.n_step, self.gamma)
        done = windows.complete
        slots = tried[done]
        self._returns[slots] = windows.returns[done]
        self._discounts[slots] = windows.discounts[done]
        self._targets[slots] = windows.targets[done]
        self._drawable[slots] = True
        self._count += len(slots)
        # A window that ends where no trajectory continues is never complete.
        waits = ~done & links.is_open(windows.targets)
        self._waiting = np.concatenate([rows[running], tried[waits]])
        self._waiting_of = np.concatenate([trajectories[running], links.trajectories_at(windows.targets[waits])])
        self._begin(slots)

    def _with_observation(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        links = self._rows.links
        # An additional image is followed by a newer image; the observation after a segment is followed by nothing.
        return slots[~links.observed[slots] | (links.following[slots] < 0)]

    def _overwrite(self, slots: NDArray[np.int64]) -> None:
        self._count -= int(np.count_nonzero(self._drawable[slots]))
        self._drawable[slots] = False

    def _begin(self, slots: NDArray[np.int64]) -> None:
        """Sets the first priorities of new transitions."""

    def _reset_priorities(self) -> None:
        """Sets priorities again after `_drawable` has changed without `_begin` and `_overwrite`."""

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        filled = self._rows.links.filled
        if 2 * self._count < filled:
            return rng.choice(np.flatnonzero(self._drawable[:filled]), count)
        return super()._draw(count, rng)

    def _can_draw(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._drawable[slots]


def _of_rows(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a buffer's state for its `StoredRows`; {} for an empty buffer."""
    return {name: state[name] for name in ("links", "columns") if name in state}
