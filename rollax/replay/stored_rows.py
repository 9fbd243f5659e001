"""The rows of a replay buffer: which slots a fragment takes, and how its rows are stored."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.stored_values import read_dict, read_value, wrong_value
from rollax.errors import CheckpointError, ConfigError
from rollax.replay.buffer_sizes import check_buffer_fits
from rollax.replay.fragment_checks import Layout, check_fragment, check_layouts, empty_column, layout_of, layout_to_json
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Addition, Links

log = logging.getLogger("rollax.replay")
_OBS = SampleBatch.OBS
_ENOUGH_STACKS = 100  # before warning that most stacks do not continue the previous stack


class StoredRows:
    """Stores the newest rows, each observation once; the first fragment allocates the memory.

    Args:
        capacity: slots.
        names: further columns to store, beside `obs`, `actions` and `rewards`.
        frames: how observations are stacked; None: not at all.
        owners_bytes: bytes per slot that the buffer needs in addition to the rows.
        where: the buffer's name in error messages.
    """

    def __init__(
        self, capacity: int, names: Sequence[str], frames: StackedFrames | None, owners_bytes: int, where: str
    ) -> None:
        self.capacity = capacity
        self.names = tuple(dict.fromkeys((_OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, *names)))
        self._frames, self._owners_bytes, self._where = frames, owners_bytes, where
        self._images = 1 if frames is None else frames.count
        self._stacks, self._broken = 0, 0  # stacks in segments, and how many do not continue the previous stack
        self._warned = False
        self._forget()

    def _forget(self) -> None:
        self.links = Links(self.capacity, self._images)
        self._layouts: dict[str, Layout] = {}  # the layouts of columns; empty before the first fragment
        self._stored: dict[str, trees.Tree] = {}  # columns by slot; only the newest image of stacked observations

    @property
    def bytes_per_slot(self) -> int:
        """Bytes per slot, `owners_bytes` included; 0 before the first fragment."""
        return self._needed(self._stored) if self._stored else 0

    @property
    def rewards(self) -> NDArray:
        """[slots] the rewards of single steps."""
        return self._stored[SampleBatch.REWARDS]

    def read(self, name: str, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of one column's rows at K slots."""
        if name == _OBS and self._frames is not None:
            return self._frames.read(self._stored[_OBS], self.links, slots)
        return trees.index(self._stored[name], slots)

    def checked(self, batch: SampleBatch) -> Fragment:
        """The batch, if it is a fragment that can be added; the first fragment allocates memory."""
        fragment = check_fragment(batch, self.names, self._where)
        if not self._stored:
            self._allocate({name: layout_of(fragment[name]) for name in self.names})
        check_layouts(fragment, self._layouts, self._where)
        return fragment

    def addition(self, fragment: Fragment) -> Addition:
        """The slots that a fragment takes and overwrites if it is added; `fragment` is a result of `checked`."""
        rows, segments, ends, obs, goes_on, images = self._entries(fragment)
        size = len(goes_on)
        if self._frames is not None:
            inside = np.ones(size, np.bool_)
            inside[rows[fragment.starts]] = False
            self._look_for_broken_stacks(inside, goes_on)
        slots = np.full(size, -1)
        slots[rows[fragment.starts]] = self._taken_over(fragment, size + int(images.sum()))
        fresh = slots < 0
        needed = np.where(fresh, 1 + images, 0)
        slots = np.where(fresh, (self.links.taken + np.cumsum(needed) - 1) % self.capacity, slots)
        count = int(needed.sum())
        if count > self.capacity:
            what = "A fragment does not fit into the replay buffer."
            fix = "raise buffer_size, or lower num_envs_per_worker or rollout_fragment_length"
            raise ConfigError(what, f"capacity of {self._where}", self.capacity, expected=f"at least {count}", fix=fix)
        return Addition(
            *(fragment, rows, segments, ends, obs, slots, goes_on, images, fresh, count),
            taken=self.links.taken + count,
            overwritten=self.links.overwritten_by(count),
        )

    def slots_for(self, fragment: Fragment) -> int:
        """The number of slots that a fragment takes if it continues no earlier fragment."""
        *_, goes_on, images = self._entries(fragment)
        return len(goes_on) + int(images.sum())

    def _entries(self, fragment: Fragment) -> tuple[NDArray, NDArray, NDArray, trees.Tree | None, NDArray, NDArray]:
        """`rows`, `segments`, `ends`, `obs`, `goes_on` and `images` of an `Addition`."""
        rows, segments, ends = fragment.extended()
        size = len(rows) + len(ends)
        goes_on = np.ones(size, np.bool_)
        goes_on[rows[fragment.starts]] = False
        if self._frames is None:
            return rows, segments, ends, None, goes_on, np.zeros(size, np.int64)

        def in_order(column: NDArray, after: NDArray) -> NDArray:
            joined = np.empty((size, *column.shape[1:]), column.dtype)
            joined[rows], joined[ends] = column, after[segments]
            return joined

        obs = trees.tree_map(in_order, fragment[_OBS], fragment.after[_OBS])
        goes_on, images = self._frames.images_before(obs, goes_on)
        return rows, segments, ends, obs, goes_on, images

    def put(self, added: Addition) -> None:
        """Adds a fragment; nothing may change between `addition` and this call."""
        self.links.overwrite(added)
        row_slots, end_slots, after = added.row_slots, added.end_slots, added.fragment.after
        for name, stored in self._stored.items():
            if name == _OBS and self._frames is not None:
                self._frames.put(stored, self.links, added)
                continue
            trees.put(stored, row_slots, added.fragment[name])
            if name in after:
                trees.put(stored, end_slots, trees.index(after[name], added.segments))
            else:
                for array in trees.leaves(stored):
                    array[end_slots] = 0
        self.links.put(added)

    def get_state(self) -> dict[str, Any]:
        """The whole state, as arrays and JSON values; {} without rows."""
        filled = self.links.filled
        columns = {
            name: {
                "like": layout_to_json(self._layouts[name]),
                "arrays": [array[:filled].copy() for array in trees.leaves(stored)],
            }
            for name, stored in self._stored.items()
        }
        return {"links": self.links.get_state(), "columns": columns} if filled else {}

    def check_state(self, state: Mapping[str, Any]) -> None:
        if not state:
            return
        links, columns = (read_dict(state, name, self._where) for name in ("links", "columns"))
        for what, keys, stored, own in (
            ("capacity", "buffer_size", read_value(links, "size", self._where), self.capacity),
            ("set of columns", "prioritized_replay, model", sorted(columns), sorted(self.names)),
            ("number of stacked frames", "frame_stack_axis", read_value(links, "images", self._where), self._images),
        ):
            if stored != own:
                raise CheckpointError(f"The saved replay buffer has a different {what}.", self._where, stored).expected(
                    own,
                    f"restore with the {what} of the saved run (config keys: {keys}); to continue with another, pass "
                    "the saved weights to a new trainer: new.set_weights(restored.get_weights())",
                )
        where = {name: f"{self._where}, column {name!r}" for name in columns}
        empty = self._empty({name: read_value(columns[name], "like", where[name]) for name in columns})
        filled = Links(self.capacity, self._images).check_state(links, self._where)
        for name, column in empty.items():
            expected = [(array.dtype, (filled, *array.shape[1:])) for array in trees.leaves(column)]
            arrays = read_value(columns[name], "arrays", where[name])
            found = [(getattr(array, "dtype", None), np.shape(array)) for array in arrays]
            if found != expected:
                raise wrong_value(where[name], str(found), str(expected))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of rows of the same capacity, columns and frames returned; see `check_state`."""
        self._forget()
        if not state:
            return
        likes = {name: empty_column(column["like"], self._where) for name, column in state["columns"].items()}
        self._allocate({name: layout_of(like) for name, like in likes.items()})
        for name, column in state["columns"].items():
            for array, values in zip(trees.leaves(self._stored[name]), column["arrays"], strict=True):
                array[: len(values)] = values
        self.links.set_state(state["links"])

    def _empty(self, layouts: Mapping[str, Layout]) -> dict[str, trees.Tree]:
        """Empty columns in the stored layout, after a check that full columns fit into memory."""
        empty = {name: empty_column(layout, f"{self._where}, column {name!r}") for name, layout in layouts.items()}
        if self._frames is not None:
            empty[_OBS] = self._frames.newest(empty[_OBS])
        check_buffer_fits(self.capacity, self._needed(empty), self._where)
        return empty

    def _allocate(self, layouts: Mapping[str, Layout]) -> None:
        stored = {name: trees.empty_like(column, self.capacity) for name, column in self._empty(layouts).items()}
        self.links.allocate()
        self._layouts, self._stored = dict(layouts), stored

    def _needed(self, columns: Mapping[str, trees.Tree]) -> int:
        arrays = [array for column in columns.values() for array in trees.leaves(column)]
        rows = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in arrays)
        return rows + Links.bytes_per_slot(self.capacity, self._images) + self._owners_bytes

    def _taken_over(self, fragment: Fragment, at_most: int) -> NDArray[np.int64]:
        """[P] for each segment, the open slot with its first observation, which an earlier segment stored; else -1.

        At most `at_most` slots are taken for the fragment; an open slot must not be among these slots.
        """
        slots = np.full(len(fragment.ends), -1)
        ends = self.links.open_slots(fragment[SampleBatch.TRAJECTORY_ID][fragment.ends])
        known = np.flatnonzero(ends >= 0)
        known = known[self.links.lasts(ends[known], at_most)]
        if len(known):
            # If a fragment was lost, or an id used twice, the observation differs.
            obs = trees.index(fragment[_OBS], fragment.starts[known])
            same = known[_same_rows(self.read(_OBS, ends[known]), obs)]
            slots[same] = ends[same]
        return slots

    def _look_for_broken_stacks(self, inside: NDArray[np.bool_], goes_on: NDArray[np.bool_]) -> None:
        """Warns once if most stacks inside a trajectory are not the previous row's stack, shifted by one image."""
        if self._frames is None or self._warned:
            return
        self._stacks += int(np.count_nonzero(inside))
        self._broken += int(np.count_nonzero(inside & ~goes_on))
        if self._stacks >= _ENOUGH_STACKS and 2 * self._broken > self._stacks:
            self._warned = True
            log.warning(
                "%s: %d of %d stacks of %d images do not continue the one before, and take up to %d slots each instead "
                "of one. Check that images are stacked along axis %d (frame_stack_axis), the newest last; leave "
                "frame_stack_axis out for other observations.",
                *(self._where, self._broken, self._stacks, self._images, self._images, self._frames.axis),
            )


def _same_rows(first: trees.Tree, second: trees.Tree) -> NDArray[np.bool_]:
    """[K] true where the rows of two columns of K rows and the same structure are equal."""

    def equal(ours: NDArray, theirs: NDArray) -> NDArray[np.bool_]:
        return (ours == theirs).reshape(len(ours), -1).all(axis=1)

    # By key: Dicts may have their keys in another order.
    return np.logical_and.reduce(list(trees.leaves(trees.tree_map(equal, first, second))))
