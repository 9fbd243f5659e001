"""Links between the slots of a ring buffer: next and previous rows in a trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.batch.columns import positions_in
from rollax.batch.n_step import Windows, n_step_windows
from rollax.core import trees
from rollax.core.stored_values import read_array, read_count, read_value, wrong_value

_NONE = -1
_COLUMNS = ("following", "preceding", "number", "back", "terminated", "truncated", "observed")
Slots = NDArray[np.integer]


class Addition(NamedTuple):
    """A fragment and its M entries: the rows, and the observation after each segment that does not terminate."""

    fragment: Fragment  # N rows
    rows: NDArray[np.int64]  # [N] the entries of the rows
    segments: NDArray[np.int64]  # [E] the segments that do not terminate
    ends: NDArray[np.int64]  # [E] the entries of the observations after them
    obs: trees.Tree | None  # columns of M observations; None if observations are not stacked
    slots: NDArray[np.int64]  # [M] the ring buffer slots of the entries
    goes_on: NDArray[np.bool_]  # [M] true where the stack is the stack of the previous entry, shifted by one image
    images: NDArray[np.int64]  # [M] the number of images in the slots before each entry's own
    fresh: NDArray[np.bool_]  # [M] false where the observation is already in its slot
    needed: int  # the number of slots that the fragment takes
    taken: int  # slots taken since the beginning, by this fragment too
    overwritten: NDArray[np.int64]  # slots that no longer hold a row

    @property
    def row_slots(self) -> NDArray[np.int64]:
        return self.slots[self.rows]

    @property
    def end_slots(self) -> NDArray[np.int64]:
        return self.slots[self.ends]


class Links:
    """New rows take slots in order and overwrite the oldest rows; a slot is linked to its neighbours in the trajectory.

    A later row has a later slot, so a forward link never leads to an overwritten slot. The link to the row before is
    removed when that row is overwritten. An observation that loses one of its images counts as overwritten itself.

    The observation after a segment has an open slot of its own. The next row of the trajectory, with the same
    observation, is stored there. Memory is taken by `allocate`.

    Args:
        size: the number of slots.
        images: the number of images per observation, if each slot holds one image; else 1.
    Attributes:
        taken: slots taken since the beginning, overwritten ones included.
        following, preceding: [slots] the slots of the next and the previous row; -1 for none.
        number: [slots] how many rows the trajectory has before this one, overwritten rows included.
        back: [slots] the slot of the image before; the slot itself for the first image, which represents all before it.
            Empty if observations are not stacked.
        terminated, truncated: [slots] whether the trajectory ended after the row.
        observed: [slots] whether the slot holds only an observation, without an action.
    """

    def __init__(self, size: int, images: int = 1) -> None:
        self.size = size
        self.taken = 0
        self._images = images
        self._open_trajectories, self._open_slots = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._make_arrays(0)

    def allocate(self) -> None:
        self._make_arrays(self.size)

    @staticmethod
    def bytes_per_slot(size: int, images: int = 1) -> int:
        return (3 if images > 1 else 2) * np.min_scalar_type(-size - 1).itemsize + 4 + 3

    @property
    def filled(self) -> int:
        """The number of slots in use."""
        return min(self.taken, self.size)

    def open_slots(self, trajectories: NDArray[np.int64]) -> NDArray[np.int64]:
        """[K] the open slot of each trajectory, at its last observation; -1 for none."""
        if not len(self._open_trajectories):
            return np.full(len(trajectories), _NONE)
        found = np.searchsorted(self._open_trajectories, trajectories).clip(max=len(self._open_trajectories) - 1)
        return np.where(self._open_trajectories[found] == trajectories, self._open_slots[found], _NONE)

    def is_running(self, trajectories: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] whether these trajectories may continue."""
        return self.open_slots(trajectories) != _NONE

    def trajectories_at(self, open_slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """[K] the trajectories that may continue from these slots."""
        return self._open_trajectories[positions_in(self._open_slots, open_slots)]

    def is_open(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] whether a trajectory may continue from these slots."""
        return np.isin(slots, self._open_slots)

    def lasts(self, slots: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """[K] whether the observations at [K] slots are still stored when the next `count` slots are taken."""
        images = self.image_slots(slots) if self._images > 1 else slots[:, None]
        return ((images - self.taken) % self.size).min(axis=1) >= count

    def overwritten_by(self, count: int) -> NDArray[np.int64]:
        """The slots whose observation, or an image of it, is lost when the next `count` slots are taken."""
        slots = self._oldest(count)
        return self._with_dependents(slots) if self._images > 1 else slots

    def overwrite(self, added: Addition) -> None:
        """Takes the slots that a fragment needs, and unlinks their old contents."""
        slots = self._oldest(added.needed)
        followers, leaders = self._followers(added.overwritten)
        self.preceding[followers[self.preceding[followers] == leaders]] = _NONE
        self._keep_open(~np.isin(self._open_slots, added.overwritten))
        self.following[slots] = self.preceding[slots] = _NONE
        self.taken = added.taken

    def take_back(self, added: Addition) -> NDArray[np.int64]:
        """Removes a fragment that is only partly stored; returns the slots that are empty now."""
        self.taken = added.taken
        slots = np.union1d(added.overwritten, (added.taken - 1 - np.arange(added.needed)) % self.size)
        ends = added.slots[~added.fresh]  # open slots from which the fragment continued
        gone = np.zeros(self.size, np.bool_)
        gone[slots] = True
        for links in (self.following, self.preceding):
            links[(links != _NONE) & gone[links]] = _NONE
            links[slots] = _NONE
        if self._images > 1:
            self.back[slots] = slots
        self.following[ends] = _NONE
        self.terminated[slots] = self.truncated[slots] = False
        self.terminated[ends] = self.truncated[ends] = False
        self.observed[slots] = self.observed[ends] = True
        self._open_trajectories, self._open_slots = np.zeros(0, np.int64), np.zeros(0, np.int64)
        return slots

    def put(self, added: Addition) -> None:
        """Links the entries of a fragment, whose slots were open or have been freed by `overwrite`."""
        fragment, slots, row_slots, end_slots = added.fragment, added.slots, added.row_slots, added.end_slots
        terminated = fragment[SampleBatch.TERMINATEDS]
        cut_off = fragment[SampleBatch.TRUNCATEDS] & ~terminated
        self.terminated[row_slots], self.truncated[row_slots], self.observed[row_slots] = terminated, cut_off, False
        self.terminated[end_slots], self.truncated[end_slots], self.observed[end_slots] = False, False, True
        later = np.delete(np.arange(len(slots)), added.rows[fragment.starts])
        before = slots[later - 1]
        self.following[before], self.preceding[slots[later]] = slots[later], before
        firsts = added.rows[fragment.starts]
        begun = np.where(added.fresh[firsts], 0, self.number[slots[firsts]]) - firsts
        self.number[slots] = np.repeat(begun, np.diff(firsts, append=len(slots))) + np.arange(len(slots))
        if self._images > 1:
            moved = np.flatnonzero(added.goes_on)
            self.back[slots[moved]] = slots[moved - 1]
        trajectories = fragment[SampleBatch.TRAJECTORY_ID][fragment.ends]
        self._keep_open(~np.isin(self._open_trajectories, trajectories))
        opened = ~cut_off[fragment.ends[added.segments]]
        trajectories = np.concatenate([self._open_trajectories, trajectories[added.segments[opened]]])
        order = np.argsort(trajectories)
        self._open_trajectories = trajectories[order]
        self._open_slots = np.concatenate([self._open_slots, end_slots[opened]])[order]

    def windows(self, rows: Slots, rewards: NDArray, n_step: int | None, gamma: float) -> Windows:
        """The n steps from the rows at [K] slots on, with [slots] rewards; see `n_step_windows`."""
        flags = self.terminated, self.truncated, self.observed
        return n_step_windows(rows, self.following, rewards, *flags, n_step=n_step, gamma=gamma)

    def image_slots(self, slots: Slots) -> NDArray[np.int64]:
        """[K, images] the slots of the images of the observations at [K] slots, the oldest first."""
        images = np.empty((len(slots), self._images), np.int64)
        images[:, -1] = slots
        for image in range(self._images - 2, -1, -1):
            images[:, image] = self.back[images[:, image + 1]]
        return images

    def indices(self, slots: Slots) -> NDArray[np.int64]:
        """[K] numbers for the current contents of these slots; later contents have other numbers."""
        newest = self.taken - 1
        return np.asarray(newest - (newest - slots) % self.size, np.int64)

    def slots_of(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[K] the slots of these indices, and whether each slot still has the contents of its index."""
        named = indices.astype(np.int64)
        return named % self.size, (named >= self.taken - self.filled) & (named < self.taken)

    def get_state(self) -> dict[str, Any]:
        columns = {name: getattr(self, name)[: self.filled].copy() for name in _COLUMNS}
        opened = {"open_trajectories": self._open_trajectories, "open_slots": self._open_slots}
        return {"size": self.size, "images": self._images, "taken": self.taken, **columns, **opened}

    def check_state(self, state: Mapping[str, Any], where: str) -> int:
        """Returns the number of slots in use; raises CheckpointError if the state does not fit this ring buffer."""
        taken = read_count(state, "taken", where)
        filled = min(taken, self.size)
        slots = self.following.dtype
        for name in ("terminated", "truncated", "observed", "number"):
            read_array(state, name, where, shape=(filled,), dtype=getattr(self, name).dtype)
        back = read_array(state, "back", where, shape=(filled if self._images > 1 else 0,), dtype=slots)
        shape = np.shape(read_value(state, "open_trajectories", where))
        trajectories = read_array(state, "open_trajectories", where, shape=shape, dtype=np.int64)
        opened = read_array(state, "open_slots", where, shape=trajectories.shape, dtype=np.int64)
        for name, found in (("back", back), ("open_slots", opened)):
            if found.size and not (found.min() >= 0 and found.max() < filled):
                raise wrong_value(f"{where}: {name}", "empty slots", f"slots from 0 to {filled - 1}")
        if trajectories.ndim != 1 or (np.diff(trajectories) <= 0).any():
            raise wrong_value(
                f"{where}: open_trajectories", "trajectories out of order", "an array [K] of ascending numbers"
            )
        here = np.arange(filled)
        for name, direction in (("following", 1), ("preceding", -1)):
            there = read_array(state, name, where, shape=(filled,), dtype=slots).astype(np.int64)
            linked = there != _NONE
            ages = ((there - taken) % self.size - (here - taken) % self.size)[linked] * direction
            if ((there < _NONE) | (there >= filled)).any() or (ages <= 0).any():
                raise wrong_value(
                    f"{where}: {name}", "a link to an empty slot, or back in time", "a trajectory's order"
                )
        return filled

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of a ring buffer of this size returned; see `check_state`."""
        self.taken = int(state["taken"])
        for name in _COLUMNS:
            values = state[name]
            getattr(self, name)[: len(values)] = values
        self._open_trajectories = np.array(state["open_trajectories"])
        self._open_slots = np.array(state["open_slots"])

    def _make_arrays(self, size: int) -> None:
        slots = np.min_scalar_type(-self.size - 1)
        self.following, self.preceding = (np.full(size, _NONE, slots) for _ in range(2))
        self.number = np.zeros(size, np.uint32)
        self.back = np.zeros(size if self._images > 1 else 0, slots)
        self.terminated, self.truncated, self.observed = (np.zeros(size, np.bool_) for _ in range(3))

    def _oldest(self, count: int) -> NDArray[np.int64]:
        """The slots in use among the next `count` slots to be taken."""
        slots = (self.taken + np.arange(count)) % self.size
        return slots[slots < self.filled]

    def _with_dependents(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """These slots, and the slots whose observations contain images from them."""
        reached = [slots]
        for _ in range(self._images - 1):
            followers, leaders = self._followers(reached[-1])
            reached.append(followers[self.back[followers] == leaders])
        return np.unique(np.concatenate(reached))

    def _followers(self, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`(next slots, slots)` of the slots that have a next slot."""
        followers = self.following[slots].astype(np.int64)
        there = followers != _NONE
        return followers[there], slots[there]

    def _keep_open(self, kept: NDArray[np.bool_]) -> None:
        self._open_trajectories, self._open_slots = self._open_trajectories[kept], self._open_slots[kept]
