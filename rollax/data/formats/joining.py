"""Trajectories from pieces: joined, completed with the last observation, and grouped by episode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.data.dataset import RecordedTrajectory
from rollax.data.formats.common import Ids
from rollax.errors import DatasetError
from rollax.trees import Tree


class Assembler:
    """Joins the pieces of trajectories that come in rows, each piece after the one before.

    Args:
        skip: gets the error of a trajectory whose pieces do not fit together.
    """

    def __init__(self, skip: Callable[[DatasetError], None]) -> None:
        self._open: dict[Ids, _Open] = {}
        self._skip = skip
        self.left_out = 0
        """Trajectories of which no step is left."""

    @property
    def episodes(self) -> set[str]:
        """The ids of the episodes with a trajectory that has no end yet."""
        return {episode for episode, _, _ in self._open}

    def add(
        self,
        key: Ids,
        columns: dict[str, Tree],
        ends: tuple[bool, bool],
        new_obs: Tree | None,
        where: str,
        *,
        continues: bool = False,
    ) -> Iterator[RecordedTrajectory]:
        """Adds rows of (episode, agent, policy); the trajectory if they end it.

        Args:
            columns: of equal length; `obs` as long as the others.
            ends: terminated, truncated, after the last row.
            new_obs: one observation, which followed the last row; None: not known.
            continues: whether earlier steps are missing if these rows begin a trajectory.
        """
        found = self._open.setdefault(key, _Open(where, continues))
        found.parts.append(columns)
        found.new_obs = new_obs
        if any(ends):
            yield from self.finish(key, ends)

    def rest(self) -> Iterator[RecordedTrajectory]:
        """The trajectories without an end."""
        for key in list(self._open):
            yield from self.finish(key)

    def finish(self, key: Ids, ends: tuple[bool, bool] = (False, False)) -> Iterator[RecordedTrajectory]:
        """The trajectory of a key with the rows up to here, if there is one."""
        found = self._open.pop(key, None)
        if found is None:
            return
        try:
            columns = {name: trees.concat([part[name] for part in found.parts]) for name in found.parts[0]}
            made = with_last_obs(columns, found.new_obs, ends, key, found.where, continues=found.continues)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._skip(
                DatasetError(
                    "Rows of a trajectory that do not fit together.",
                    where=f"{found.where}, episode {key[0]}",
                    got=f"{type(error).__name__}: {error}",
                    expected="the same columns, with values of the same shape, in all rows and in new_obs",
                    fix="use another copy, or skip some with max_broken",
                )
            )
            return
        if made is not None:
            yield made
        else:
            self.left_out += 1


class HeldEpisodes:
    """Trajectories that are held back until their episode is over, so that those of an episode follow one another."""

    def __init__(self) -> None:
        self._held: dict[str, list[RecordedTrajectory]] = {}

    def add(self, trajectories: Iterable[RecordedTrajectory]) -> None:
        """Holds trajectories."""
        for one in trajectories:
            self._held.setdefault(one.episode_id, []).append(one)

    def release(self, going_on: Collection[str] = ()) -> Iterator[RecordedTrajectory]:
        """The trajectories of all episodes but these."""
        for episode in [episode for episode in self._held if episode not in going_on]:
            yield from self._held.pop(episode)


@dataclass
class _Open:
    """A trajectory that has no end yet: its rows, and the observation after them."""

    where: str
    continues: bool
    parts: list[dict[str, Tree]] = field(default_factory=list)
    new_obs: Tree | None = None


def with_last_obs(
    columns: dict[str, Tree],
    last: Tree | None,
    ends: tuple[bool, bool],
    ids: Ids,
    where: str,
    *,
    continues: bool = False,
) -> RecordedTrajectory | None:
    """The trajectory with T + 1 observations; None where no step is left.

    An unknown terminal observation is replaced by the one before it, because its value is not used. Without a
    termination the last step is left out, because the observation after it is not known; `reward_left_out` keeps its
    reward.

    Args:
        columns: of T rows.
        last: one observation, which followed the last row; None: not known.
        ends: terminated, truncated.
        ids: episode, agent and policy.
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
