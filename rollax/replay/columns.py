"""The columns of a replay buffer, and the checks of a fragment before it is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import BatchError, NonFiniteError
from rollax.replay.column import Column, StackedColumn, described, from_description
from rollax.replay.entries import Entries, same_rows
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Links
from rollax.state import entry, wrong

_OBS = SampleBatch.OBS
ALWAYS = (_OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS)
_MARKS = (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.TRAJECTORY_ID)


class Columns:
    """The stored columns, by slot. Memory is taken by `allocate`.

    Args:
        templates: columns by name, with the layout of those to store.
        frames: how observations are stacked; None: not at all.
        links: the links of the slots.
        where: the buffer's name in error messages.
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
    def bytes_per_slot(self) -> int:
        """Bytes per slot."""
        return sum(column.bytes_per_slot for column in self._columns.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    @property
    def rewards(self) -> NDArray:
        """[slots] the rewards of single steps."""
        return self._columns[SampleBatch.REWARDS].arrays[0]

    def allocate(self, size: int) -> None:
        """Makes room for `size` rows."""
        for column in self._columns.values():
            column.allocate(size)

    def check(self, fragment: Fragment) -> None:
        """Raises BatchError where a column is unlike that of the first fragment."""
        for name, column in self._columns.items():
            if got := column.differs(fragment[name]) or column.differs(fragment.after.get(name, column.template)):
                raise BatchError(
                    "A column whose rows are unlike those in the replay buffer.",
                    where=f"{self._where}, column {name!r}",
                    got=f"row {got}",
                    expected=f"row {described(column.template)}",
                    fix="add fragments of one policy only, sampled from the same spaces",
                )

    def stacked_obs(self, fragment: Fragment, entries: Entries) -> trees.Tree | None:
        """Columns of M observations, in the order of the entries; None where they are not stacked."""
        if self._frames is None:
            return None
        return trees.tree_map(entries.of, fragment[_OBS], fragment.after[_OBS])

    def observed_at(self, slots: NDArray[np.int64], obs: trees.Tree) -> NDArray[np.bool_]:
        """[K] true where the observations at K slots are these."""
        return same_rows(self._obs.read(slots), obs)

    def put(
        self,
        slots: NDArray[np.int64],
        fragment: Fragment,
        entries: Entries,
        obs: trees.Tree | None,
        images: NDArray[np.int64],
        fresh: NDArray[np.bool_],
    ) -> None:
        """Writes the entries of a fragment to M slots.

        Args:
            slots: [M].
            fragment: the fragment.
            entries: its M entries.
            obs: their observations, where these are stacked; see `stacked_obs`.
            images: [M] how many images are kept in the slots before each entry.
            fresh: [M] true where the observation is not in its slot already.
        """
        row_slots, end_slots = slots[entries.rows], slots[entries.ends]
        for name, column in self._columns.items():
            if obs is not None and isinstance(column, StackedColumn):
                column.put_entries(slots, obs, images, fresh)
                continue
            column.put(row_slots, fragment[name])
            if name in fragment.after:
                column.put(end_slots, trees.index(fragment.after[name], entries.segments))
            else:
                column.clear(end_slots)

    def read(self, slots: NDArray[np.integer]) -> dict[str, trees.Tree]:
        """Copies of the rows at K slots, by column."""
        return {name: column.read(slots) for name, column in self._columns.items()}

    def read_obs(self, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of the observations at K slots."""
        return self._obs.read(slots)

    def read_column(self, name: str, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of one column's rows at K slots."""
        return self._columns[name].read(slots)

    def get_state(self, filled: int) -> dict[str, Any]:
        """The first `filled` slots of every column, with the layout of the columns."""
        return {
            name: {"like": described(column.template), "arrays": [array[:filled].copy() for array in column.arrays]}
            for name, column in self._columns.items()
        }

    def check_state(self, state: Mapping[str, Any], filled: int) -> None:
        """Refuses what `get_state` of equal columns cannot have returned.

        Raises:
            CheckpointError: an array is missing, or has not the shape and type of its column.
        """
        for name, column in self._columns.items():
            arrays = entry(state[name], "arrays", f"{self._where}, column {name!r}")
            expected = [(array.dtype, (filled, *array.shape[1:])) for array in column.arrays]
            found = [(getattr(array, "dtype", None), np.shape(array)) for array in arrays]
            if found != expected:
                raise wrong(f"{self._where}, column {name!r}", str(found), str(expected))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of equal columns returned; see `check_state`."""
        for name, column in self._columns.items():
            for array, values in zip(column.arrays, state[name]["arrays"], strict=True):
                array[: len(values)] = values


def templates_in(state: Mapping[str, Any], where: str) -> dict[str, trees.Tree]:
    """Empty columns with the layout of those whose `get_state` this is.

    Raises:
        CheckpointError: the layout is not one of `described`.
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


def check_fragment(fragment: SampleBatch, names: Sequence[str], where: str) -> Fragment:
    """The batch, where it is a fragment that can be stored.

    Raises:
        BatchError: it is no fragment, or a column is missing, or holds objects.
        NonFiniteError: a column holds a NaN, or another one than the observations infinity.
    """
    missing = [name for name in (*names, *_MARKS) if name not in fragment]
    if missing or not isinstance(fragment, Fragment) or _OBS not in fragment.after:
        raise BatchError(
            "A batch that cannot be added to a replay buffer.",
            where=where,
            got=f"no columns {missing}" if missing else f"a {type(fragment).__name__} without what came after its rows",
            expected=f"a Fragment with the columns {[*names, *_MARKS]}, and `obs` after its segments",
            fix="let the policy name these columns in its batch_columns, and return the fragment, or what "
            "super().postprocess_trajectory returns, from postprocessing",
        )
    for name in names:
        if any(leaf.dtype.hasobject for leaf in trees.leaves(fragment[name])):
            raise BatchError(
                "A replay buffer stores numbers, not objects.",
                where=f"{where}, column {name!r}",
                got="an array of objects",
                fix="leave the column out of the buffer's columns, or make numbers of it",
            )
    if fragment[SampleBatch.REWARDS].ndim != 1:
        raise BatchError(
            "A row has one reward.",
            where=f"{where}, column 'rewards'",
            got=f"shape {fragment[SampleBatch.REWARDS].shape}",
            expected="[rows]",
            fix="add up the rewards of each row",
        )
    for name in names:
        _check_numbers(name, fragment[name], "row", where)
        if name in fragment.after:
            _check_numbers(name, trees.index(fragment.after[name], fragment.goes_on), "segment", where)
    return fragment


def _check_numbers(name: str, column: trees.Tree, what: str, where: str) -> None:
    """Refuses NaN, and infinity in all but observations, whose space may allow it."""
    for leaf in trees.leaves(column):
        if leaf.dtype.kind != "f":
            continue
        bad = np.isnan(leaf) if name == _OBS else ~np.isfinite(leaf)
        if bad.any():
            raise NonFiniteError(
                "A fragment with NaN or infinity for a replay buffer; nothing of it is stored.",
                where=f"{where}, column {name!r}, {what} {int(np.argwhere(bad)[0][0])} of {len(leaf)}",
                got=leaf[bad][0],
                expected="finite numbers",
                fix="look for the callback, filter or postprocessing that made it: environments are checked before",
            )
