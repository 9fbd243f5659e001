"""What the formats share: spaces as settings, columns from values, joined trajectories, and skipped parts."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict

from rollax import spaces, trees
from rollax.batch import SampleBatch
from rollax.config.stored import space_from_json
from rollax.data.dataset import DatasetReader, RecordedTrajectory, skip
from rollax.data.limits import MAX_DECODED_GB
from rollax.errors import ConfigError, DatasetError
from rollax.trees import Tree

log = logging.getLogger("rollax.data")

DEFAULT_POLICY, DEFAULT_AGENT = "default_policy", "agent0"
Ids = tuple[str, Hashable, str]
"""Episode, agent, policy."""


class FormatReader(DatasetReader):
    """A reader of files that may lack spaces, and some parts of which may be broken; a subclass has `_read`.

    Args:
        observation_space: the space of one agent's observations, or its JSON; None: not known.
        action_space: the action space of the environment, or its JSON; None: not known.
        env: a Gymnasium id, for the spaces that are not given.
        actions_of: "policy" or "environment", the scale of `actions`, see `DatasetReader`; None: that of the format.
        max_broken: how many broken lines or files are skipped; one more raises.
        max_decoded_gb: GiB that a part of a binary file, such as an episode, may take once it is decoded.
    """

    def __init__(
        self,
        *,
        observation_space: Space | Mapping[str, Any] | None = None,
        action_space: Space | Mapping[str, Any] | None = None,
        env: str | None = None,
        actions_of: Literal["policy", "environment"] | None = None,
        max_broken: int = 0,
        max_decoded_gb: float = MAX_DECODED_GB,
    ) -> None:
        self.broken: list[str] = []
        if actions_of not in (None, "policy", "environment"):
            raise ConfigError(
                "An unknown scale of actions.", where="actions_of", got=actions_of, expected="policy or environment"
            )
        self.actions_of = actions_of or type(self).actions_of
        self._max_decoded_gb = max_decoded_gb
        self._max_broken = max_broken
        self._warned = False
        self.header: Mapping[str, Any] = {} if env is None else {"env": env}
        self.observation_space = _space(observation_space, "observation_space", env)
        self.action_space = _space(action_space, "action_space", env)
        self.observation_spaces = _by_policy(self.observation_space)
        self.action_spaces = _by_policy(self.action_space)

    def trajectories(self) -> Iterator[RecordedTrajectory]:
        """As `DatasetReader.trajectories`; the first time, a warning counts the last steps that are left out."""
        self.broken.clear()
        rewards: list[float] = []
        for trajectory in self._read():
            if trajectory.shortened:
                rewards.append(trajectory.reward_left_out or 0.0)
            yield trajectory
        if rewards and not self._warned:
            self._warned = True
            log.warning(
                "%d truncated trajectories are read without their last step, because the observation after it is not "
                "known. Their rewards, %g on average, count in returns, but not in estimates and learning.",
                *(len(rewards), sum(rewards) / len(rewards)),
            )

    @abstractmethod
    def _read(self) -> Iterator[RecordedTrajectory]:
        """All trajectories, once; `skip` gets the errors."""

    def skip(self, error: DatasetError) -> None:
        """Notes a broken piece; raises the error where there are too many."""
        skip(self.broken, error, self._max_broken)


def _space(given: Any, name: str, env: str | None) -> Space | None:
    if isinstance(given, Mapping) and not isinstance(given, Space):
        return space_from_json(given, name)
    if given is None and env is not None:
        import gymnasium

        try:
            made = gymnasium.make(env)
        except gymnasium.error.Error as error:
            raise ConfigError("An unknown environment.", where="env", got=f"{env} ({error})") from error
        try:
            return getattr(made, name)
        finally:
            made.close()
    return given


def _by_policy(space: Space | None) -> dict[str, Space]:
    return {} if space is None else {DEFAULT_POLICY: space}


def columns_of(space: Space | None, values: Any, name: str, where: str) -> Tree:
    """Columns from a list of values; without a space, numbers become float32 and integers int64.

    Raises:
        DatasetError: values that do not make an array of numbers, or are not of the space.
    """
    if isinstance(values, Mapping):  # a column for each key
        parts = {} if space is None else {**space.spaces} if isinstance(space, Dict) else {}
        return {key: columns_of(parts.get(key), part, f"{name}[{key!r}]", where) for key, part in values.items()}
    try:
        if space is not None:
            column = spaces.stack(space, values)
            spaces.walk(lambda leaf, path, part: _check_leaf(leaf, part, len(values)), space, column)
            return column
        return _plain_columns(values)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise DatasetError(
            "Values that are not of the space." if space is not None else "Values that do not make an array.",
            where=f"{where}, {name}",
            got=f"{type(error).__name__}: {error}",
            expected=str(space) if space is not None else "numbers, in rows of equal shape",
            fix="check the line, or the setting of the space",
        ) from error


def _check_leaf(leaf: Space, part: np.ndarray, rows: int) -> None:
    if part.shape != (rows, *(leaf.shape or ())):
        raise ValueError(f"an array of shape {part.shape}, for {rows} values of {leaf}")


def _plain_columns(values: Any) -> Tree:
    if len(values) and isinstance(values[0], Mapping):
        return {key: _plain_columns([value[key] for value in values]) for key in values[0]}
    array = np.array(values)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind not in "biu":
        raise ValueError(f"values of type {array.dtype}")
    return array


class Assembler:
    """Joins the pieces of trajectories that come in rows, each piece after the one before."""

    def __init__(self) -> None:
        self._open: dict[Ids, _Open] = {}

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
        columns = {name: trees.concat([part[name] for part in found.parts]) for name in found.parts[0]}
        made = with_last_obs(columns, found.new_obs, ends, key, found.where, continues=found.continues)
        if made is not None:
            yield made


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
