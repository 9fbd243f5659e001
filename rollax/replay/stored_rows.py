"""The rows of a replay buffer: which slots a fragment takes, and how it is stored there."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import BatchError, CheckpointError, ConfigError
from rollax.replay.columns import ALWAYS, Columns, check_fragment, templates_in
from rollax.replay.entries import Entries, entries_of
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Links
from rollax.replay.memory import check_fits
from rollax.state import entry, section

log = logging.getLogger("rollax.replay")
_ENOUGH_STACKS = 100  # before warning that most do not continue the one before


class Addition(NamedTuple):
    """The changes that adding a fragment makes.

    Args:
        fragment: the fragment.
        entries: its M entries.
        obs: columns of M observations where these are stacked; else None.
        slots: [M] the slots of the entries.
        goes_on: [M] true where the images of the entry before are a part of the observation.
        images: [M] the number of images that are kept in the slots before each entry's own.
        fresh: [M] false where the observation is in its slot already.
        needed: slots that are taken.
        taken: slots that have then been taken since the beginning.
        overwritten: slots that hold no row any more.
    """

    fragment: Fragment
    entries: Entries
    obs: trees.Tree | None
    slots: NDArray[np.int64]
    goes_on: NDArray[np.bool_]
    images: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    needed: int
    taken: int
    overwritten: NDArray[np.int64]

    @property
    def new_rows(self) -> NDArray[np.int64]:
        """The slots of the fragment's rows, in order."""
        return self.slots[self.entries.rows]


class StoredRows:
    """The newest rows, each observation once; memory is taken for the first fragment.

    Args:
        capacity: slots.
        names: further columns to store, beside `obs`, `actions` and `rewards`.
        frames: how observations are stacked; None: not at all.
        owners_bytes: bytes per slot that the owner of the rows needs.
        where: the buffer's name in error messages.
    """

    def __init__(
        self, capacity: int, names: Sequence[str], frames: StackedFrames | None, owners_bytes: int, where: str
    ) -> None:
        self.capacity = capacity
        self._names = tuple(dict.fromkeys((*ALWAYS, *names)))
        self._frames, self._owners_bytes, self._where = frames, owners_bytes, where
        self._images = 1 if frames is None else frames.count
        self._stacks, self._broken = 0, 0  # inside of segments, and those that do not continue the one before
        self._warned = False
        self._kept: tuple[Columns, Links] | None = None

    @property
    def columns(self) -> Columns:
        """The stored columns.

        Raises:
            BatchError: nothing has been added yet.
        """
        if self._kept is None:
            raise BatchError("A replay buffer that is empty.", where=self._where, fix="add batches before drawing")
        return self._kept[0]

    @property
    def links(self) -> Links:
        """The links of the slots; only after the first fragment."""
        assert self._kept is not None
        return self._kept[1]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes per slot, the owner's included; 0 before the first fragment."""
        return 0 if self._kept is None else self._needed(self.columns)

    def checked(self, batch: SampleBatch) -> Fragment:
        """The batch, where it is a fragment that can be added; memory is taken for the first one.

        Raises:
            BatchError: it is no fragment, or a column is missing or unlike those before.
            NonFiniteError: a NaN, or infinity in anything but an observation.
            ConfigError: the capacity is larger than the memory.
        """
        fragment = check_fragment(batch, self._names, self._where)
        if self._kept is None:
            self._allocate({name: fragment[name] for name in self._names})
        self.columns.check(fragment)
        return fragment

    def addition(self, fragment: Fragment) -> Addition:
        """The changes that adding a fragment over the oldest rows makes; `checked` has returned it.

        Raises:
            BatchError: a trajectory ends inside a segment.
            ConfigError: the fragment is larger than the capacity.
        """
        entries = entries_of(fragment)
        obs = self.columns.stacked_obs(fragment, entries)
        goes_on, images = ~entries.first, np.zeros(len(entries), np.int64)
        if self._frames is not None:
            goes_on, images = self._frames.images_before(obs, entries)
        self._look_for_broken_stacks(entries, goes_on)
        taken_over = self._taken_over(fragment, entries, len(entries) + int(images.sum()))
        fresh = taken_over < 0
        needed = np.where(fresh, 1 + images, 0)
        slots = np.where(fresh, (self.links.taken + np.cumsum(needed) - 1) % self.capacity, taken_over)
        count = int(needed.sum())
        self._check_room(count)
        taken, overwritten = self.links.taken + count, self.links.overwritten_by(count)
        return Addition(fragment, entries, obs, slots, goes_on, images, fresh, count, taken, overwritten)

    def put(self, added: Addition) -> None:
        """Adds a fragment; nothing is changed between `addition` and this."""
        self.links.overwrite(added.needed, added.overwritten)
        self.columns.put(added.slots, added.fragment, added.entries, added.obs, added.images, added.fresh)
        self.links.put(added.entries, added.slots, added.goes_on)

    def take_back(self, added: Addition) -> NDArray[np.int64]:
        """Removes a fragment that was stored only in part; returns the slots that are empty now."""
        new = (added.taken - 1 - np.arange(added.needed)) % self.capacity
        gone = np.union1d(added.overwritten, new)
        self.links.cut_out(gone, added.slots[~added.fresh], added.taken)
        return gone

    def get_state(self) -> dict[str, Any]:
        """The whole state, as arrays and JSON values; {} without rows."""
        if self._kept is None or not self.links.filled:
            return {}
        return {"links": self.links.get_state(), "columns": self.columns.get_state(self.links.filled)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `set_state` would refuse; nothing is changed.

        Raises:
            CheckpointError: another capacity, other columns or other frames.
            ConfigError: the capacity is larger than the memory.
        """
        if not state:
            return
        links, columns = (section(state, name, self._where) for name in ("links", "columns"))
        for what, keys, stored, own in (
            ("capacity", "buffer_size", entry(links, "size", self._where), self.capacity),
            ("set of columns", "prioritized_replay, model", sorted(columns), sorted(self._names)),
            ("number of stacked frames", "frame_stack_axis", entry(links, "images", self._where), self._images),
        ):
            if stored != own:
                raise CheckpointError(
                    f"A replay buffer of another {what}.",
                    where=self._where,
                    got=stored,
                    expected=own,
                    fix=f"restore with the {what} of the run that saved it (config keys: {keys}); to continue with "
                    "another, pass on the weights of a trainer that was restored so: set_weights(get_weights())",
                )
        own_columns, own_links = self._prepared(templates_in(columns, self._where))
        own_columns.check_state(columns, own_links.check_state(links, self._where))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of rows of the same capacity, columns and frames returned; see `check_state`."""
        if not state:
            self._kept = None
            return
        self._allocate(templates_in(state["columns"], self._where))
        self.columns.set_state(state["columns"])
        self.links.set_state(state["links"])

    def _prepared(self, templates: Mapping[str, trees.Tree]) -> tuple[Columns, Links]:
        """Columns and links for such rows, without their memory, after a check that it is available."""
        links = Links(self.capacity, self._images)
        columns = Columns(templates, self._frames, links, self._where)
        check_fits(self.capacity, self._needed(columns), self._where)
        return columns, links

    def _allocate(self, templates: Mapping[str, trees.Tree]) -> None:
        columns, links = self._prepared(templates)
        links.allocate()
        columns.allocate(self.capacity)
        self._kept = columns, links

    def _needed(self, columns: Columns) -> int:
        links = Links.bytes_per_slot(self.capacity, self._images)
        return columns.bytes_per_slot + links + self._owners_bytes

    def _taken_over(self, fragment: Fragment, entries: Entries, at_most: int) -> NDArray[np.int64]:
        """[M] the slot where an observation is already, as the end of an earlier segment of its trajectory; else -1.

        Args:
            fragment: what is added.
            entries: its entries.
            at_most: the number of slots that may be taken for it.
        """
        slots = np.full(len(entries), -1)
        ends = self.links.open_slots(entries.trajectory[entries.first])
        known = np.flatnonzero(ends >= 0)
        known = known[self.links.lasts(ends[known], at_most)]
        if len(known):
            # If a fragment was lost, or a number used twice, the observation differs.
            obs = trees.index(fragment[SampleBatch.OBS], fragment.starts[known])
            same = known[self.columns.observed_at(ends[known], obs)]
            slots[np.flatnonzero(entries.first)[same]] = ends[same]
        return slots

    def _look_for_broken_stacks(self, entries: Entries, goes_on: NDArray[np.bool_]) -> None:
        """Warns once where most stacks inside a trajectory are not those of the row before, shifted by one image."""
        if self._frames is None or self._warned:
            return
        inside = ~entries.first
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

    def _check_room(self, needed: int) -> None:
        if needed > self.capacity:
            raise ConfigError(
                "A fragment does not fit into the replay buffer.",
                where=f"capacity of {self._where}",
                got=self.capacity,
                expected=f"at least {needed}",
                fix="set a larger capacity (config key 'buffer_size'), or sample smaller fragments "
                "(num_envs_per_worker, rollout_fragment_length)",
            )
