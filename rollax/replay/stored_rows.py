"""Rows of experience in a ring: how batches are added, and where their rows come to lie."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import BatchError, CheckpointError, ConfigError
from rollax.replay.columns import ALWAYS, Columns, check_batch, templates_in
from rollax.replay.following import Rows, rows_of
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Links
from rollax.replay.memory import check_fits
from rollax.state import entry, section

log = logging.getLogger("rollax.replay")
_ENOUGH_STACKS = 100  # to tell whether most of them go on from the one before


class Addition(NamedTuple):
    """What adding a batch is to change.

    Args:
        batch: what is added.
        rows: its M rows.
        places: [M] where they are to lie.
        goes_on: [M] true where the images of the row before are a part of the observation.
        images: [M] how many images are kept beside each row's own.
        fresh: [M] true where nothing of the row lies there already.
        needed: places that are taken.
        taken: places that have then been taken since the beginning.
        given_up: places that hold no row any more.
    """

    batch: SampleBatch
    rows: Rows
    places: NDArray[np.int64]
    goes_on: NDArray[np.bool_]
    images: NDArray[np.int64]
    fresh: NDArray[np.bool_]
    needed: int
    taken: int
    given_up: NDArray[np.int64]

    @property
    def new_rows(self) -> NDArray[np.int64]:
        """The places of the rows that something was done in, in order."""
        return self.places[~self.rows.observed]


class StoredRows:
    """The newest rows, each observation once; memory is taken when the first batch comes.

    Args:
        capacity: places.
        names: of columns to keep beside `obs`, `actions` and `rewards`.
        frames: how observations are stacked; None: not at all.
        owners_bytes: per place, what the owner of the rows needs for itself.
        where: the buffer's name in error messages.
    """

    def __init__(
        self, capacity: int, names: Sequence[str], frames: StackedFrames | None, owners_bytes: int, where: str
    ) -> None:
        self.capacity = capacity
        self._names = tuple(dict.fromkeys((*ALWAYS, *names)))
        self._frames, self._owners_bytes, self._where = frames, owners_bytes, where
        self._images = 1 if frames is None else frames.count
        self._stacks, self._broken = 0, 0  # inside of segments, and those of them that do not go on
        self._warned = False
        self._kept: tuple[Columns, Links] | None = None

    @property
    def columns(self) -> Columns:
        """What the rows hold.

        Raises:
            BatchError: there are none yet.
        """
        if self._kept is None:
            raise BatchError("A replay buffer that is empty.", where=self._where, fix="add batches before drawing")
        return self._kept[0]

    @property
    def links(self) -> Links:
        """How the rows are linked; once there are some."""
        assert self._kept is not None
        return self._kept[1]

    @property
    def bytes_per_place(self) -> int:
        """Memory that a place needs, the owner's included; 0 before the first batch."""
        return 0 if self._kept is None else self._needed(self.columns)

    def addition(self, batch: SampleBatch) -> Addition:
        """What adding a batch over the oldest rows is to change; at the first one memory is taken.

        Raises:
            BatchError: a column is missing or unlike those before, or a segment's end lacks what came after it.
            NonFiniteError: a NaN, or infinity in anything but an observation.
            ConfigError: the capacity is larger than the memory, or smaller than the batch.
        """
        if self._kept is None:
            check_batch(batch, self._names, self._where)
            self._allocate({name: batch[name] for name in self._names})
        self.columns.check(batch)
        rows = rows_of(batch)
        goes_on, images = self.columns.images_before(batch, rows)
        self._look_for_broken_stacks(rows, goes_on)
        taken_over = self._taken_over(batch, rows, len(rows) + int(images.sum()))
        fresh = taken_over < 0
        needed = np.where(fresh, 1 + images, 0)
        places = np.where(fresh, (self.links.taken + np.cumsum(needed) - 1) % self.capacity, taken_over)
        count = int(needed.sum())
        self._check_room(count)
        taken, given_up = self.links.taken + count, self.links.dying(count)
        return Addition(batch, rows, places, goes_on, images, fresh, count, taken, given_up)

    def put(self, added: Addition) -> None:
        """Adds a batch; nothing is changed between `addition` and this."""
        batch, rows, fresh = added.batch, added.rows, added.fresh
        self.links.give_up(added.needed, added.given_up)
        self.columns.put(added.places, batch, rows.index)
        self.columns.put_obs(added.places[fresh], batch, rows.index[fresh], added.images[fresh])
        self.links.put(rows, added.places, added.goes_on)

    def take_back(self, added: Addition) -> NDArray[np.int64]:
        """Leaves out a batch that was put only in part; returns the places that hold no row any more."""
        new = (added.taken - 1 - np.arange(added.needed)) % self.capacity
        gone = np.union1d(added.given_up, new)
        self.links.cut_out(gone, added.places[~added.fresh], added.taken)
        return gone

    def get_state(self) -> dict[str, Any]:
        """Everything, as arrays and values that JSON can hold; without rows nothing."""
        if self._kept is None or not self.links.filled:
            return {}
        return {"links": self.links.get_state(), "columns": self.columns.get_state(self.links.filled)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `set_state` cannot take over; nothing is changed.

        Raises:
            CheckpointError: it is of rows with another capacity, other columns or other frames.
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
                    fix=f"restore with the {what} of the run that saved it (config keys: {keys}); to go on with "
                    "another, hand over the weights of a trainer that was restored so: set_weights(get_weights())",
                )
        own_columns, own_links = self._prepared(templates_in(columns, self._where))
        own_columns.check_state(columns, own_links.check_state(links, self._where))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of rows of the same capacity, columns and frames returned; see `check_state`."""
        if not state:
            self._kept = None
            return
        self._allocate(templates_in(state["columns"], self._where))
        self.columns.set_state(state["columns"])
        self.links.set_state(state["links"])

    def _prepared(self, templates: Mapping[str, trees.Tree]) -> tuple[Columns, Links]:
        """Columns and links for such rows, checked, without the memory for them."""
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
        links = Links.bytes_per_place(self.capacity, self._images)
        return columns.bytes_per_place + links + self._owners_bytes

    def _taken_over(self, batch: SampleBatch, rows: Rows, at_most: int) -> NDArray[np.int64]:
        """[M] the place where a row's observation lies already, as the end of an earlier segment of its trajectory;
        else -1.

        Args:
            batch: what is added.
            rows: its rows.
            at_most: the number of places that may be taken for it.
        """
        places = np.full(len(rows), -1)
        first = np.flatnonzero(rows.previous < 0)
        ends = self.links.open_places(rows.trajectory[first])
        first, ends = first[ends >= 0], ends[ends >= 0]
        lasting = self.links.lasts(ends, at_most)
        first, ends = first[lasting], ends[lasting]
        if len(first):
            # A trajectory whose number was given twice, or of which something was lost, does not go on from there.
            places[first] = np.where(self.columns.observed_at(ends, batch, rows.index[first]), ends, -1)
        return places

    def _look_for_broken_stacks(self, rows: Rows, goes_on: NDArray[np.bool_]) -> None:
        """Warns once where most stacks inside a trajectory are not those of the row before, shifted by one image."""
        if self._frames is None or self._warned:
            return
        inside = rows.previous >= 0
        self._stacks += int(np.count_nonzero(inside))
        self._broken += int(np.count_nonzero(inside & ~goes_on))
        if self._stacks >= _ENOUGH_STACKS and 2 * self._broken > self._stacks:
            self._warned = True
            log.warning(
                "%s: %d of %d stacks of %d images do not go on from the one before, and take up to %d places each "
                "instead of one. Look whether axis %d (frame_stack_axis) is the one that images are stacked along, the "
                "newest last; leave it out for observations that are no such stacks.",
                *(self._where, self._broken, self._stacks, self._images, self._images, self._frames.axis),
            )

    def _check_room(self, needed: int) -> None:
        if needed > self.capacity:
            raise ConfigError(
                "A batch does not fit into the replay buffer.",
                where=f"capacity of {self._where}",
                got=self.capacity,
                expected=f"at least {needed}",
                fix="set a larger capacity (config key 'buffer_size'), or sample smaller batches (num_envs_per_worker, "
                "rollout_fragment_length)",
            )
