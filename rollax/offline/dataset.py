"""`DatasetReader`: a source of recorded trajectories.

A custom reader is a subclass that has the attributes of `DatasetReader` and implements `trajectories`.
`open_dataset(source, format="module:Class")` calls the class with the paths and settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import Space

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.core.trees import Tree
from rollax.errors import DatasetError

ENV_ACTIONS = "env_actions"
"""The column of the actions that the environment received, if a policy's `actions` were scaled or clipped."""

SCALE = ("normalize_actions", "clip_actions")
"""The settings in a header that define how a policy's actions were scaled and clipped for the environment."""

WITH_LAST = frozenset({SampleBatch.OBS, SampleBatch.INFOS})
"""The columns of T + 1 rows."""
_ALWAYS = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS)
_LENGTHS = "pass T actions and rewards, and T + 1 observations"


@dataclass
class RecordedTrajectory:
    """One agent's steps of one episode, in order.

    Args:
        columns: name of `SampleBatch` -> column. `obs` has T + 1 rows; its last row is the observation after the last
            action. `infos`, if known, are the info dicts that came with the T + 1 observations. The other columns have
            T rows: `actions` and `rewards` always; if known, `t` (the number of the environment step in the episode),
            `action_logp`, `action_dist_inputs`, and `env_actions`.
        terminated: the trajectory ended in a terminal state.
        truncated: the environment ended the trajectory early, for example by a time limit. If neither flag is true,
            the recording stopped in the middle. Later steps, if recorded, are in another trajectory with the same ids.
        episode_id: id of the episode; unique in its data set, and in all data sets that are read together.
        agent_id: the agent.
        policy_id: the policy that acted for the agent.
        where: file and line or row, for error messages.
        continues: whether earlier steps of the agent in this episode are missing, or are in another trajectory.
        reward_left_out: the reward of a further last step that is not in `columns`, because the observation after it
            is unknown; None without such a step.
    """

    columns: dict[str, Tree]
    terminated: bool
    truncated: bool
    episode_id: str
    agent_id: Hashable
    policy_id: str
    where: str = ""
    continues: bool = False
    reward_left_out: float | None = None

    def __len__(self) -> int:
        return trees.length(self.columns[SampleBatch.REWARDS])

    @property
    def place(self) -> str:
        """The origin of the trajectory, for errors."""
        return self.where or f"episode {self.episode_id}, agent {self.agent_id!r}"

    def check(self) -> None:
        """Raises DatasetError for an id, flag or column of a wrong type, and for missing columns or wrong lengths."""
        for name in ("episode_id", "policy_id"):
            if not isinstance(value := getattr(self, name), str):
                error = DatasetError.is_not(f"The {name} of a trajectory", "a string", self.place, value)
                raise error.fix(f"pass {str(value)!r}")
        for name in ("terminated", "truncated", "continues"):
            value = getattr(self, name)
            if np.ndim(value) or value not in (False, True):
                fix = f"pass bool({name}[-1]), for its last step" if np.ndim(value) else "pass True or False"
                raise DatasetError(f"{name} of a trajectory is neither true nor false.", self.place, value, fix=fix)
        if missing := [name for name in _ALWAYS if name not in self.columns]:
            got = f"no {', '.join(missing)}"
            raise DatasetError("The trajectory lacks a required column.", self.place, got, fix=_LENGTHS)
        leaves = [(name, leaf) for name, column in self.columns.items() for leaf in trees.leaves(column)]
        for name, leaf in leaves:
            if not hasattr(leaf, "__array__") or not np.ndim(leaf):
                where, got = f"{self.place}, column {name!r}", f"{leaf!r}"[:60]
                raise DatasetError("The column is not an array.", where, got).expected(
                    "a NumPy array [T, ...], or a dict or tuple of such arrays", "convert it: np.array(column)"
                )
        steps = len(self)
        for name, leaf in leaves:
            expected = steps + (name in WITH_LAST)
            if len(leaf) != expected or not steps:
                where, got = f"{self.place}, column {name!r}", f"{len(leaf)} rows"
                expected = f"{expected}, for {steps} steps" if steps else "at least one step"
                raise DatasetError("The column has the wrong length.", where, got, expected=expected, fix=_LENGTHS)

    @property
    def ended(self) -> bool:
        """Whether the trajectory was recorded to its end."""
        return self.terminated or self.truncated

    @property
    def cut(self) -> bool:
        """Whether the beginning or the end of the trajectory is missing, so that its return is unknown."""
        return self.continues or not self.ended

    @property
    def shortened(self) -> bool:
        """Whether the trajectory was truncated, and its last step is left out; see `reward_left_out`."""
        return self.truncated and self.reward_left_out is not None

    @property
    def total_reward(self) -> float:
        """The undiscounted sum of the rewards, with `reward_left_out`; DatasetError for a trajectory that is cut."""
        if self.cut:
            end = "without the beginning" if self.ended else "neither terminated nor truncated"
            raise DatasetError(
                "The return of a cut trajectory is unknown.", self.place, f"{len(self)} steps, {end}"
            ).fix("skip trajectories whose `cut` is true")
        return float(np.sum(self.columns[SampleBatch.REWARDS], dtype=np.float64)) + (self.reward_left_out or 0.0)


class Continuations:
    """Finds the trajectories whose beginning is missing, or is in an earlier, cut trajectory of the same ids.

    Their returns are unknown. Trajectories must be passed in the order of the data.
    """

    def __init__(self) -> None:
        self._unfinished: set[tuple[str, Hashable]] = set()

    def __call__(self, trajectory: RecordedTrajectory) -> bool:
        who = trajectory.episode_id, trajectory.agent_id
        found = trajectory.continues or who in self._unfinished
        (self._unfinished.discard if trajectory.ended else self._unfinished.add)(who)
        return found


class DatasetReader(ABC):
    """A data set: recorded trajectories with their spaces.

    Attributes:
        observation_spaces: policy id -> space of the environment's observations.
        action_spaces: policy id -> action space of the environment.
        header: facts about the data: `env`, `behaviour` (algorithm, timesteps, score), `version`, `filters`,
            `normalize_actions` and `clip_actions`, and `logp_of`. If `action_logp` is the density of actions in
            another scale than `actions`, `logp_of` is that scale, "policy" or "environment". Where files differ, the
            last three entries are None, and other entries are left out.
        actions_of: "policy" if `actions` are the policy's actions, in its own scale and unclipped; "environment" if
            they are the actions that the environment received.
        broken: one message for each part that was skipped because it could not be read.
    """

    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]
    header: Mapping[str, Any]
    actions_of: Literal["policy", "environment"] = "environment"
    broken: list[str]

    @abstractmethod
    def trajectories(self) -> Iterator[RecordedTrajectory]:
        """Yields all trajectories once, always in the same order; the trajectories of an episode are adjacent.

        Raises:
            DatasetError: a part cannot be read; the error has its file and line.
        """

    def __len__(self) -> int:
        """The number of rows (agent steps); reads the whole data set if no file states the number."""
        return sum(len(trajectory) for trajectory in self.trajectories())

    def __bool__(self) -> bool:
        return True

    def close(self) -> None:  # noqa: B027  most readers hold nothing open
        """Closes open files."""


def has_box_actions(trajectory: RecordedTrajectory) -> bool:
    """Whether a part of the actions is continuous, so that it can be scaled and clipped for the environment."""
    return any(leaf.dtype.kind == "f" for leaf in trees.leaves(trajectory.columns[SampleBatch.ACTIONS]))


def env_actions(trajectory: RecordedTrajectory, reader: DatasetReader) -> Tree:
    """The actions that the environment received; DatasetError if not recorded and possibly different from `actions`."""
    columns, header = trajectory.columns, reader.header
    if ENV_ACTIONS in columns:
        return columns[ENV_ACTIONS]
    unchanged = all(header.get(name, True) is False for name in SCALE)
    if reader.actions_of == "policy" and has_box_actions(trajectory) and not unchanged:
        what, got = "The actions that the environment received are not recorded.", "the policy's, in its own scale"
        raise DatasetError(what, trajectory.place, got).expected(
            f"a column {ENV_ACTIONS!r}",
            "convert to rollax's own format, which keeps the scale; or give the setting "
            'actions_of="environment" if the environment received these actions',
        )
    return columns[SampleBatch.ACTIONS]


def common_header(headers: Sequence[Mapping[str, Any]], actions_of: str) -> dict[str, Any]:
    """The header of several files or data sets: the entries that are equal in all of them, also within `behaviour`.

    The settings of `SCALE` and `logp_of` are None if the headers differ in them.
    """
    behaviour = _shared([header.get("behaviour") or {} for header in headers])
    # Without these settings, a policy's actions are scaled and clipped, as in RLlib.
    defaults = {**dict.fromkeys(SCALE, True if actions_of == "policy" else None), "logp_of": actions_of}
    found = {
        name: [header.get(name, default) for header in headers]
        for name, default in defaults.items()
        if any(name in header for header in headers)
    }
    scale = {name: values[0] if values.count(values[0]) == len(values) else None for name, values in found.items()}
    return {**_shared(headers), **({"behaviour": behaviour} if behaviour else {}), **scale}


def _shared(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = entries
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}
