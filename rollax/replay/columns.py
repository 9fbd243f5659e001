"""The columns of a replay buffer, made from the first batch, and what a batch must be like to be added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import BatchError, NonFiniteError
from rollax.replay.column import Column, StackedColumn, described, from_description
from rollax.replay.following import Rows, same_rows
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Links
from rollax.state import entry, wrong

_OBS = SampleBatch.OBS
ALWAYS = (_OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS)
_MARKS = (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.TRAJECTORY_ID)


class Columns:
    """What rows hold, by place. There is no room for any before `allocate`.

    Args:
        templates: columns by name, like those to keep.
        frames: how observations are stacked; None: not at all.
        links: how places are linked.
        where: which buffer it is, for error messages.
    Raises:
        ConfigError: the observations are not stacked as `frames` says.
    """

    def __init__(
        self, templates: Mapping[str, trees.Tree], frames: StackedFrames | None, links: Links, where: str
    ) -> None:
        self._frames, self._where = frames, where
        self._columns = {name: Column(template) for name, template in templates.items() if name != _OBS}
        obs = templates[_OBS]
        self._obs = Column(obs) if frames is None else StackedColumn(obs, frames, links)
        self._columns[_OBS] = self._obs

    @property
    def bytes_per_place(self) -> int:
        """Memory that a place needs."""
        return sum(column.bytes_per_place for column in self._columns.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are kept."""
        return tuple(self._columns)

    @property
    def rewards(self) -> NDArray:
        """[places] the rewards as they were given."""
        return self._columns[SampleBatch.REWARDS].arrays[0]

    def allocate(self, size: int) -> None:
        """Makes room for `size` rows."""
        for column in self._columns.values():
            column.allocate(size)

    def check(self, batch: SampleBatch) -> None:
        """Raises BatchError where the batch's columns are unlike those of the first batch; see also `check_batch`."""
        check_batch(batch, tuple(self._columns), self._where)
        for name, column in self._columns.items():
            if got := column.differs(batch[name]):
                raise BatchError(
                    "A column whose rows are unlike those in the replay buffer.",
                    where=f"{self._where}, column {name!r}",
                    got=f"row {got}",
                    expected=f"row {described(column.template)}",
                    fix="add batches of one policy only, sampled from the same spaces",
                )

    def images_before(self, batch: SampleBatch, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """As `StackedFrames.images_before`; without stacks no row needs another image."""
        if self._frames is None:
            return rows.previous >= 0, np.zeros(len(rows), np.int64)
        return self._frames.images_before(batch[_OBS], rows)

    def observed_at(self, places: NDArray[np.int64], batch: SampleBatch, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[K] true where what was observed at K places is what K rows of the batch observe."""
        return same_rows(self._obs.read(places), np.arange(len(places)), batch[_OBS], index)

    def put(self, places: NDArray[np.int64], batch: SampleBatch, index: NDArray[np.int64]) -> None:
        """Writes K rows of the batch to K places, all but their observations."""
        for name, column in self._columns.items():
            if name != _OBS:
                column.put(places, batch[name], index)

    def put_obs(
        self, places: NDArray[np.int64], batch: SampleBatch, index: NDArray[np.int64], images: NDArray[np.int64]
    ) -> None:
        """Writes the observations of K rows to K places; of stacks also [K] `images` to the places before."""
        if isinstance(self._obs, StackedColumn):
            self._obs.put(places, batch[_OBS], index, images)
        else:
            self._obs.put(places, batch[_OBS], index)

    def read(self, places: NDArray[np.integer]) -> dict[str, trees.Tree]:
        """Copies of the rows at K places, by column."""
        return {name: column.read(places) for name, column in self._columns.items()}

    def read_obs(self, places: NDArray[np.integer]) -> trees.Tree:
        """A copy of the observations at K places."""
        return self._obs.read(places)

    def read_column(self, name: str, places: NDArray[np.integer]) -> trees.Tree:
        """A copy of one column's rows at K places."""
        return self._columns[name].read(places)

    def get_state(self, filled: int) -> dict[str, Any]:
        """The first `filled` places of every column, and what the columns are like."""
        return {
            name: {"like": described(column.template), "arrays": [array[:filled].copy() for array in column.arrays]}
            for name, column in self._columns.items()
        }

    def check_state(self, state: Mapping[str, Any], filled: int) -> None:
        """Refuses what `get_state` of like columns cannot have returned.

        Raises:
            CheckpointError: an array is missing, or is not of the shape and type that the column is described with.
        """
        for name, column in self._columns.items():
            arrays = entry(state[name], "arrays", f"{self._where}, column {name!r}")
            expected = [(array.dtype, (filled, *array.shape[1:])) for array in column.arrays]
            found = [(getattr(array, "dtype", None), np.shape(array)) for array in arrays]
            if found != expected:
                raise wrong(f"{self._where}, column {name!r}", str(found), str(expected))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of like columns returned; see `check_state`."""
        for name, column in self._columns.items():
            for array, values in zip(column.arrays, state[name]["arrays"], strict=True):
                array[: len(values)] = values


def templates_in(state: Mapping[str, Any], where: str) -> dict[str, trees.Tree]:
    """What the columns were like whose `get_state` this is.

    Raises:
        CheckpointError: a description that `described` cannot have made.
    """
    templates = {}
    for name, column in state.items():
        try:
            templates[name] = from_description(column["like"])
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise wrong(
                f"{where}, column {name!r}", f"{column!r} ({error})", "shapes and types of its arrays"
            ) from error
    return templates


def check_batch(batch: SampleBatch, names: Sequence[str], where: str) -> None:
    """Refuses a batch that cannot be kept.

    Raises:
        BatchError: a column is missing, or holds objects.
        NonFiniteError: a column holds a NaN, or another one than the observations infinity.
    """
    missing = [name for name in (*names, *_MARKS) if name not in batch]
    if missing or batch.seq_lens is not None:
        raise BatchError(
            "A batch that cannot be added to a replay buffer.",
            where=where,
            got=f"no columns {missing}" if missing else "padded sequences",
            expected=f"flat rows with the columns {[*names, *_MARKS]}",
            fix="let the policy name these columns in its batch_columns, and add batches before sequences()",
        )
    for name in names:
        if any(leaf.dtype.hasobject for leaf in trees.leaves(batch[name])):
            raise BatchError(
                "A replay buffer keeps numbers, not objects.",
                where=f"{where}, column {name!r}",
                got="an array of objects",
                fix="leave the column out of the buffer's columns, or make numbers of it",
            )
    if batch[SampleBatch.REWARDS].ndim != 1:
        raise BatchError(
            "A row has one reward.",
            where=f"{where}, column 'rewards'",
            got=f"shape {batch[SampleBatch.REWARDS].shape}",
            expected="[rows]",
            fix="add up the rewards of each row",
        )
    for name in names:
        _check_numbers(name, batch, where)


def _check_numbers(name: str, batch: SampleBatch, where: str) -> None:
    """Kept, a NaN would be drawn again and again. Infinity is refused too, but some observation spaces allow it."""
    for leaf in trees.leaves(batch[name]):
        if leaf.dtype.kind != "f":
            continue
        bad = np.isnan(leaf) if name == _OBS else ~np.isfinite(leaf)
        if bad.any() and name != _OBS and SampleBatch.BOOTSTRAP in batch:
            bad[batch[SampleBatch.BOOTSTRAP]] = False  # of such a row nothing but the observation is read
        if bad.any():
            raise NonFiniteError(
                "A batch with NaN or infinity for a replay buffer; nothing of it is kept.",
                where=f"{where}, column {name!r}, row {int(np.argwhere(bad)[0][0])} of {len(leaf)}",
                got=leaf[bad][0],
                expected="finite numbers",
                fix="look for the callback, filter or postprocessing that made it: environments are checked before",
            )
