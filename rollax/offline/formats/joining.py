"""Joins pieces of trajectories, by episode, and adds the last observation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.core.trees import Tree
from rollax.errors import DatasetError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import Ids, decoding


class Piece(NamedTuple):
    """Consecutive rows of one trajectory.

    Args:
        key: episode, agent, policy.
        columns: columns of equal length, including `obs`.
        ends: (terminated, truncated) after the last row.
        new_obs: the observations after the rows; None: unknown.
        where: file and line or row, for error messages.
    """

    key: Ids
    columns: dict[str, Tree]
    ends: tuple[bool, bool]
    new_obs: Tree | None
    where: str


class Assembler:
    """Joins consecutive pieces of trajectories, and holds finished trajectories until their episode is over.

    An agent may skip steps of the environment, so a gap in `t` does not show that rows are missing. Rows are missing if
    the observation after a row differs from the observation of the next row: the next row then begins another
    trajectory, which continues the previous one. This is checked at gaps in `t`, or, without `t`, between pieces.

    Args:
        skip: called with the error of a trajectory whose pieces do not fit together.
    """

    def __init__(self, skip: Callable[[DatasetError], None]) -> None:
        self._open: dict[Ids, _Open] = {}
        self._finished: dict[str, list[RecordedTrajectory]] = {}
        self._skip = skip
        self.left_out = 0
        """Number of trajectories of which no step remains."""

    def __contains__(self, key: Ids) -> bool:
        """Whether the trajectory of this key is unfinished."""
        return key in self._open

    @property
    def episodes(self) -> set[str]:
        """The ids of the episodes with unfinished trajectories."""
        return {episode for episode, _, _ in self._open}

    def add(self, piece: Piece, *, continues: bool) -> None:
        """Adds rows. `continues`: whether steps before them are missing; read only if they begin a trajectory."""
        self._open.setdefault(piece.key, _Open(continues)).pieces.append(piece)
        if any(piece.ends):
            self.finish(piece.key, piece.ends)

    def finish_all(self) -> None:
        """Finishes all unfinished trajectories, which are cut."""
        for key in list(self._open):
            self.finish(key)

    def finish(self, key: Ids, ends: tuple[bool, bool] = (False, False)) -> None:
        """Finishes the trajectory of a key with its rows so far; without rows, nothing happens."""
        if (found := self._open.pop(key, None)) is None:
            return
        try:
            where = f"{found.pieces[0].where}, episode {key[0]}"
            with decoding("the same columns, of equal shapes, in all rows and in new_obs", where):
                made = list(found.trajectories(ends))
        except DatasetError as error:
            self._skip(error)
            return
        self.left_out += made.count(None)
        for one in made:
            if one is not None:
                self._finished.setdefault(one.episode_id, []).append(one)

    def release(self, going_on: Collection[str] = ()) -> Iterator[RecordedTrajectory]:
        """Removes and returns the finished trajectories, episode by episode, of all episodes but `going_on`."""
        for episode in [episode for episode in self._finished if episode not in going_on]:
            yield from self._finished.pop(episode)


@dataclass
class _Open:
    """An unfinished trajectory; `continues`: whether its beginning is missing."""

    continues: bool
    pieces: list[Piece] = field(default_factory=list)

    def trajectories(self, ends: tuple[bool, bool]) -> Iterator[RecordedTrajectory | None]:
        """The trajectory of these rows, or several if rows are missing; None if no steps remain."""
        first, following = self.pieces[0], [piece.new_obs for piece in self.pieces]
        columns = {name: trees.concat([piece.columns[name] for piece in self.pieces]) for name in first.columns}
        steps = trees.length(columns[SampleBatch.REWARDS])
        new_obs = None if any(part is None for part in following) else trees.concat(following)
        missing = [] if new_obs is None else self._rows_after_missing(columns, new_obs)
        for start, stop in pairwise([0, *missing, steps]):
            rows = {name: trees.index(column, slice(start, stop)) for name, column in columns.items()}
            last = None if new_obs is None else trees.index(new_obs, stop - 1)
            over = ends if stop == steps else (False, False)
            yield with_last_obs(rows, last, over, first.key, first.where, continues=self.continues or start > 0)

    def _rows_after_missing(self, columns: dict[str, Tree], new_obs: Tree) -> list[int]:
        t = columns.get(SampleBatch.T)
        if t is None:
            lengths = [trees.length(piece.columns[SampleBatch.REWARDS]) for piece in self.pieces]
            rows = np.cumsum(lengths)[:-1]
        else:
            rows = np.flatnonzero(np.diff(t) != 1) + 1
        same = trees.tree_map(same_rows, trees.index(new_obs, rows - 1), trees.index(columns[SampleBatch.OBS], rows))
        return rows[~np.all(list(trees.leaves(same)), axis=0)].tolist()


def same_rows(ours: NDArray, theirs: NDArray) -> NDArray[np.bool_]:
    """[n] whether rows are equal; NaN equals NaN."""
    equal = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    return equal.all(axis=tuple(range(1, equal.ndim)))


def with_last_obs(
    columns: dict[str, Tree],
    last: Tree | None,
    ends: tuple[bool, bool],
    ids: Ids,
    where: str,
    *,
    continues: bool = False,
) -> RecordedTrajectory | None:
    """The trajectory with T + 1 observations; None if no step remains.

    An unknown terminal observation is replaced by the previous one, because its value is not used. Without a
    termination the last step is left out, because the observation after it is unknown; `reward_left_out` keeps its
    reward.

    Args:
        columns: columns of T rows.
        last: the observation after the last row; None: unknown.
        ends: (terminated, truncated).
        continues: whether earlier steps are missing.
    """
    obs, left_out = columns[SampleBatch.OBS], None
    if last is not None:
        after = trees.tree_map(lambda leaf: np.asarray(leaf)[None], last)
        columns = {**columns, SampleBatch.OBS: trees.concat((obs, after))}
    else:
        steps = trees.length(columns[SampleBatch.REWARDS])
        if ends[0]:
            with_copy = trees.concat((obs, trees.index(obs, slice(steps - 1, steps))))
            columns = {**columns, SampleBatch.OBS: with_copy}
        elif steps < 2:
            return None
        else:
            left_out = float(columns[SampleBatch.REWARDS][-1])
            shorter = {name: trees.index(column, slice(steps - 1)) for name, column in columns.items()}
            columns = {**shorter, SampleBatch.OBS: obs}
    episode, agent, policy = ids
    return RecordedTrajectory(columns, *ends, str(episode), agent, policy, where, continues, left_out)
