"""`DatasetWriter`: writes trajectories into Parquet files of limited size."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import Space

import rollax
from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core import trees
from rollax.core.space_json import space_to_json
from rollax.errors import ConfigError, DatasetError
from rollax.offline.dataset import WITH_LAST, Continuations, RecordedTrajectory
from rollax.offline.formats.layout import (
    CONTINUES,
    FORMAT_VERSION,
    HEADER,
    IDS,
    IS_LAST,
    REWARD_LEFT_OUT,
    TERMINATED,
    TRUNCATED,
    Columns,
    bytes_of_info,
    id_to_text,
    plain_infos,
    schema_of,
)
from rollax.offline.new_file import NewFile

Compression = Literal["zstd", "snappy", "gzip", "none"]
ActionsOf = Literal["policy", "environment"]
_PREFIX = re.compile(r"\w[\w. -]*")
_ROWS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 1 << 24


class DatasetWriter:
    """Writes trajectories into the Parquet files of a folder; see `rollax.offline.formats.layout`.

    A file gets its name when it is complete on disk, so a killed process loses only the open file. An episode is
    divided between files only if one of its trajectories has other columns than the trajectories before it.

    Args:
        folder: created if it is missing; existing files stay.
        observation_spaces: policy id -> space; or one space, for "default_policy".
        action_spaces: policy id -> action space of the environment, in the same forms.
        header: further facts about the data, as JSON values; a function is called for each file. See
            `DatasetReader.header`.
        actions_of: the scale of the column `actions`, see `DatasetReader`.
        prefix: prefix of the file names: a letter, digit or `_`, then any of these, `.`, `-` and spaces.
        compression: compression of the columns.
        max_file_size: bytes after which a file is completed, and another begun.
    Raises:
        ConfigError: an unknown compression or scale of actions, a prefix with other characters, or a policy with only
            one of its spaces.
    """

    def __init__(
        self,
        folder: str | Path,
        observation_spaces: Mapping[str, Space] | Space,
        action_spaces: Mapping[str, Space] | Space,
        *,
        header: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        actions_of: ActionsOf = "environment",
        prefix: str = "part",
        compression: Compression = "zstd",
        max_file_size: int = 64 << 20,
    ) -> None:
        self.folder = Path(folder)
        self.paths: list[Path] = []
        """The completed files."""
        self._header, self._actions_of = header or {}, actions_of
        self._spaces = _spaces_by_policy(observation_spaces, action_spaces)
        _check_settings(compression, actions_of, prefix)
        # For its first array, PyArrow imports pandas, if installed. This import would fail while the program ends.
        pa.array(np.empty(0, object), pa.string())
        self._prefix, self._compression, self._max_file_size = prefix, compression, max_file_size
        self._columns: dict[str, Columns] = {}  # policy id -> columns, without a prefix in their names
        self._shared = True  # whether all policies have the same columns
        self._file: NewFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[RecordedTrajectory] = []
        self._pending_rows = self._pending_bytes = 0
        self._last_episode: str | None = None
        self._begin_counts()
        self._episode: list[float] | None = None  # returns in the running episode; None: one is unknown
        self._continues = Continuations()
        # Names sort in the order of writing. The token makes them different from the names of other processes' files.
        self._number, self.token = len(list(self.folder.glob(f"{prefix}-*.parquet"))), secrets.token_hex(4)

    def write(self, trajectory: RecordedTrajectory) -> None:
        """Adds a copy of a trajectory; the trajectories of an episode must be adjacent.

        Raises:
            DatasetError: a column is missing, is no array, has another length, holds objects or has a name that is
                taken; a policy lacks spaces; an id or flag has a wrong type; the header is no JSON; or the disk fails.
        """
        trajectory.check()
        id_to_text(trajectory.agent_id)  # raises for an id that no file can hold
        if trajectory.episode_id != self._last_episode:
            self._end_episode()
            self._between_episodes()
        continues = self._continues(trajectory)
        if continues or trajectory.cut:
            self._episode = None
        elif self._episode is not None:
            self._episode.append(trajectory.total_reward)
        self._last_episode = trajectory.episode_id
        self._note_columns(trajectory)
        # Copies, because the caller may reuse its arrays before they are written.
        columns = {
            name: trees.tree_map(plain_infos if name == SampleBatch.INFOS else np.array, column)
            for name, column in trajectory.columns.items()
        }
        self._pending.append(replace(trajectory, columns=columns, continues=continues))
        self._pending_rows += len(trajectory) + 1
        self._pending_bytes += sum(leaf.nbytes for column in columns.values() for leaf in trees.leaves(column))
        self._pending_bytes += sum(map(bytes_of_info, columns.get(SampleBatch.INFOS, ())))

    def close(self) -> None:
        """Completes the open file."""
        self._end_episode()
        try:
            self._write_pending()
        finally:
            self._complete()

    def abandon(self) -> None:
        """Removes the open file and drops the trajectories that are not written yet."""
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0
        self._begin_counts()
        self._episode = None
        file, self._file, self._writer = self._file, None, None
        if file is not None:
            file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begin_counts(self) -> None:
        """Sets the counts of the open file to 0."""
        self._steps = self._trajectories = self._episodes = 0
        self._score = 0.0  # the sum of the returns of whole episodes

    def _end_episode(self) -> None:
        if self._episode:
            self._episodes += 1
            self._score += sum(self._episode)
        self._episode = []

    def _between_episodes(self) -> None:
        if self._pending_rows >= _ROWS_AT_ONCE or self._pending_bytes >= min(_BYTES_AT_ONCE, self._max_file_size):
            self._write_pending()
        if self._file is not None and self._file.file.tell() >= self._max_file_size:
            self._complete()

    def _note_columns(self, trajectory: RecordedTrajectory) -> None:
        """Begins a new file if the columns differ from the columns of the open file."""
        policy_id = trajectory.policy_id
        if policy_id not in self._spaces:
            error = DatasetError.unknown("policy of a trajectory", policy_id, self._spaces, trajectory.place)
            raise error.fix("pass the spaces of this policy to DatasetWriter")
        columns = Columns.of(trajectory.columns, trajectory.where or f"policy {policy_id!r}")
        if policy_id in self._columns and self._columns[policy_id].shape() == columns.shape():
            return
        self._write_pending()
        known = [other.shape() for name, other in self._columns.items() if name != policy_id]
        fits = policy_id not in self._columns and self._shared and columns.shape() in known
        self._columns[policy_id] = columns
        if not fits:
            self._complete()
            self._shared = all(shape == columns.shape() for shape in known)

    def _layout(self) -> dict[str, Columns]:
        if self._shared:
            first = next(iter(self._columns.values()))
            return dict.fromkeys(self._spaces, first)
        return {policy_id: columns.named(f"{policy_id}:") for policy_id, columns in self._columns.items()}

    def _write_pending(self) -> None:
        if not self._pending:
            return
        layout = self._layout()
        if self._writer is None:
            self._open(layout)
        assert self._file is not None
        assert self._writer is not None
        table, rows = table_of(self._pending, layout), self._pending_rows
        # Counted before the write: Ctrl-C in the write raises after it, and the next write must not repeat the rows.
        self._trajectories += len(self._pending)
        self._steps += rows - len(self._pending)
        self._pending.clear()
        self._pending_rows = self._pending_bytes = 0
        try:
            self._writer.write_table(table, row_group_size=rows)
        except OSError as error:
            failed = self._file.failed(error)
            self.abandon()
            raise failed from error

    def _open(self, layout: Mapping[str, Columns]) -> None:
        name = f"{self._prefix}-{self._number:06d}-{self.token}.parquet"
        self._number += 1
        columns = {policy_id: {"columns": columns.to_json()} for policy_id, columns in layout.items()}
        policies = {policy_id: {**spaces, **columns.get(policy_id, {})} for policy_id, spaces in self._spaces.items()}
        header = {
            "format_version": FORMAT_VERSION,
            "version": rollax.__version__,
            "actions_of": self._actions_of,
            **(self._header() if callable(self._header) else self._header),
            "policies": policies,
        }
        schema = schema_of(layout).with_metadata({HEADER: _json(header)})
        self._file = NewFile(self.folder / name)
        names: Any = list(IDS)
        compression = "NONE" if self._compression == "none" else self._compression
        self._writer = pq.ParquetWriter(
            self._file.file, schema, compression=compression, use_dictionary=names, write_statistics=names
        )

    def _complete(self) -> None:
        if self._file is None or self._writer is None:
            return
        file, writer = self._file, self._writer
        self._file = self._writer = None
        mean = self._score / self._episodes if self._episodes else None
        contents = {"trajectories": self._trajectories, "steps": self._steps}
        contents |= {"episodes": self._episodes, "episode_reward_mean": mean}
        self._begin_counts()
        try:
            writer.add_key_value_metadata({b"rollax.contents": json.dumps(contents).encode()})
            writer.close()
        except OSError as error:
            file.discard()
            raise file.failed(error) from error
        self.paths.append(file.commit())


def _json(header: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(header).encode()
    except TypeError as error:
        raise DatasetError("The header is not JSON.", "DatasetWriter(header)", str(error)).expected(
            "numbers, strings, lists and dicts of these", "leave the value out"
        ) from error


def table_of(trajectories: list[RecordedTrajectory], layout: Mapping[str, Columns]) -> pa.Table:
    """The rows of these trajectories, in order."""
    lengths = np.array([len(trajectory) for trajectory in trajectories])
    ends = np.cumsum(lengths + 1) - 1
    last = np.zeros(int(ends[-1]) + 1, bool)
    last[ends] = True
    ids = {
        "episode_id": [trajectory.episode_id for trajectory in trajectories],
        "agent_id": [id_to_text(trajectory.agent_id) for trajectory in trajectories],
        "policy_id": [trajectory.policy_id for trajectory in trajectories],
    }
    columns: dict[str, pa.Array] = {
        name: pa.array(np.repeat(np.array(values, object), lengths + 1), pa.string()) for name, values in ids.items()
    }
    columns[IS_LAST] = pa.array(last)
    for name, rows in ((TERMINATED, ends - 1), (TRUNCATED, ends - 1), (CONTINUES, ends - lengths)):
        flags = np.zeros(len(last), bool)
        flags[rows] = [getattr(trajectory, name) for trajectory in trajectories]
        columns[name] = pa.array(flags, mask=last)
    left_out = np.full(len(last), None, object)
    left_out[ends] = [trajectory.reward_left_out for trajectory in trajectories]
    columns[REWARD_LEFT_OUT] = pa.array(left_out, pa.float64())
    layouts = [layout[trajectory.policy_id] for trajectory in trajectories]
    for shared in {id(one): one for one in layouts}.values():
        rows = np.repeat([one is shared for one in layouts], lengths + 1)
        group = [one for one, of_one in zip(trajectories, layouts, strict=True) if of_one is shared]
        for name, tree in shared.items():
            present = rows if name in WITH_LAST else rows & ~last
            values = trees.concat([trajectory.columns[name] for trajectory in group])
            for leaf, array in zip(trees.leaves(tree), trees.leaves(values), strict=True):  # equal layouts: equal order
                columns[leaf.column] = leaf.to_arrow(array, present)
    schema = schema_of(layout)
    for field in schema:
        if field.name not in columns:  # for a policy without a trajectory here
            columns[field.name] = pa.nulls(len(last), field.type)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _spaces_by_policy(
    observation_spaces: Mapping[str, Space] | Space, action_spaces: Mapping[str, Space] | Space
) -> dict[str, dict[str, Any]]:
    """Policy id -> its spaces as JSON."""
    seen, acted = (
        {DEFAULT_POLICY: given} if isinstance(given, Space) else given for given in (observation_spaces, action_spaces)
    )
    if seen.keys() != acted.keys():
        what, where = "The spaces are of different policies.", "observation_spaces, action_spaces of DatasetWriter"
        raise ConfigError(what, where, f"{sorted(seen)} and {sorted(acted)}", fix="pass both spaces of each policy")
    return {
        policy_id: {"observation_space": space_to_json(space), "action_space": space_to_json(acted[policy_id])}
        for policy_id, space in seen.items()
    }


def _check_settings(compression: Any, actions_of: Any, prefix: Any) -> None:
    for name, value, known in (("compression", compression, Compression), ("actions_of", actions_of, ActionsOf)):
        if value not in get_args(known):
            raise ConfigError.unknown(name, value, get_args(known), f"{name} of DatasetWriter")
    if not (isinstance(prefix, str) and _PREFIX.fullmatch(prefix)):
        what, where = "The prefix cannot begin the names of data files.", "prefix of DatasetWriter"
        raise ConfigError(what, where, repr(prefix)).expected(
            "a string that begins with a letter, a digit or _, followed by these, '.', '-' and spaces",
            "choose another prefix: files with hidden names are not read, and folders belong into `folder`",
        )
