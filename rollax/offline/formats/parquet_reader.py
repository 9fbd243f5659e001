"""`ParquetReader`: reads the files of `DatasetWriter`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollax.batch import SampleBatch
from rollax.config.json_form import check_spaces_together
from rollax.core import trees
from rollax.core.space_json import space_from_json
from rollax.core.storage import parsed_json
from rollax.core.trees import Tree
from rollax.errors import DatasetError, SpaceError
from rollax.offline.dataset import WITH_LAST, RecordedTrajectory, common_header
from rollax.offline.formats.common import (
    MAX_DECODED_GB,
    FormatReader,
    check_decoded,
    check_setting,
    checked_max_gb,
    decoding,
)
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
    id_from_text,
)
from rollax.offline.formats.limited_parquet import LimitedParquet

_SPACES = ("observation_space", "action_space")
_OURS = "a Parquet file as rollax writes it"
_BYTES_OF_TRAJECTORY = 2000  # as an object of Python, with views of its columns


class _File(NamedTuple):
    path: Path
    header: Mapping[str, Any]
    columns: Mapping[str, Columns]
    contents: Mapping[str, Any]


class ParquetReader(FormatReader):
    """Reads rollax's own Parquet files, in the order of `paths`, one row group at a time.

    Args:
        paths: the files.
        columns: the columns to read, if they exist; None: all. `obs`, `actions` and `rewards` are always read.
        max_broken: maximum number of damaged files and row groups that are skipped; one more raises DatasetError.
        max_decoded_gb: maximum GiB of a decoded row group.
    Raises:
        DatasetError: a file that is truncated, of a newer format, or with other spaces than the first; or a row
            group that is too large.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        columns: Sequence[str] | None = None,
        max_broken: int = 0,
        max_decoded_gb: float = MAX_DECODED_GB,
    ) -> None:
        super().__init__(paths, max_broken=max_broken)
        self._max_decoded_gb = checked_max_gb(max_decoded_gb)
        check_setting("columns", columns, not isinstance(columns, str), "None, or a list of the names of columns")
        self._wanted = None if columns is None else {*columns, "obs", "actions", "rewards"}
        if self._wanted is not None and max_broken:
            self._wanted.add(SampleBatch.T)  # shows whether the beginning of a trajectory was skipped
        self._files = self._open_all(_opened)
        self.actions_of = self._files[0].header.get("actions_of", "environment")
        self.header = common_header([file.header for file in self._files], self.actions_of)
        score = self._score()
        if score is not None:
            self.header["behaviour"] = {**self.header.get("behaviour", {}), "score": score}
        for file in self._files:
            self._take_spaces(file)

    def __len__(self) -> int:
        return sum(int(file.contents.get("steps", 0)) for file in self._files)

    def _read(self) -> Iterator[RecordedTrajectory]:
        for file in self._files:
            try:
                with decoding(_OURS, file.path):  # removed or changed after it was opened, or damaged
                    parquet = LimitedParquet(file.path, self._max_decoded_gb)
            except DatasetError as error:
                self.skip(error)
                continue
            with parquet:
                for group in range(parquet.metadata.num_row_groups):
                    yield from self._group(file, parquet, group)

    def _group(self, file: _File, parquet: LimitedParquet, group: int) -> list[RecordedTrajectory]:
        where = f"{file.path}, row group {group}"
        try:
            with decoding(_OURS, where):
                table = parquet.read_row_group(group, self._names(file))
                # Dictionary encoding may store a short trajectory in some bits; its Python object takes much more.
                size = _BYTES_OF_TRAJECTORY * (pc.call_function("sum", [table[IS_LAST]]).as_py() or 0)
                check_decoded(table.nbytes + size, self._max_decoded_gb, where)
                found = list(_trajectories_of(table, file.columns, self._wanted, where))
        except DatasetError as error:
            self.skip(error)
            return []
        for one in found:
            # The earlier steps may be in a skipped part.
            one.continues |= bool(self.broken and SampleBatch.T in one.columns and one.columns[SampleBatch.T][0] > 0)
        return found

    def _score(self) -> float | None:
        """The mean return of the whole episodes of all files; None if there are none."""
        found = [(one.contents.get("episodes", 0), one.contents.get("episode_reward_mean")) for one in self._files]
        episodes = sum(count for count, _ in found)
        if not episodes:
            return None
        return sum(count * mean for count, mean in found if count) / episodes

    def _names(self, file: _File) -> list[str] | None:
        if self._wanted is None:
            return None
        leaves = {
            leaf.column
            for columns in file.columns.values()
            for name, tree in columns.items()
            if name in self._wanted
            for leaf in trees.leaves(tree)
        }
        return [*IDS, IS_LAST, TERMINATED, TRUNCATED, CONTINUES, REWARD_LEFT_OUT, *sorted(leaves)]

    def _take_spaces(self, file: _File) -> None:
        path, policies = file.path, file.header["policies"]
        with decoding(_OURS, path):
            try:
                described = (one.get(kind) for one in policies.values() for kind in _SPACES)
                check_spaces_together(described, str(path))
                spaces = {
                    (policy_id, kind): space_from_json(described[kind], f"{path}, policy {policy_id!r}")
                    for policy_id, described in policies.items()
                    for kind in _SPACES
                }
            except SpaceError as error:
                raise ValueError(str(error)) from error
        for (policy_id, kind), space in spaces.items():
            self._take_space(policy_id, space, kind, path)
        if (actions_of := file.header.get("actions_of", "environment")) != self.actions_of:
            what, got = "The actions of the files have different scales.", f"actions of the {actions_of}"
            raise DatasetError(what, path, got).expected(
                f"actions of the {self.actions_of}, as in {self._files[0].path}", "read them as two sources"
            )


def header_of(path: Path) -> dict[str, Any] | None:
    """The header of a Parquet file by rollax; None for other Parquet files; DatasetError for damaged files."""
    with decoding(_OURS, path):
        metadata = pq.read_schema(path).metadata or {}
        return _object(parsed_json(metadata[HEADER])) if HEADER in metadata else None


def _opened(path: Path) -> _File:
    header = header_of(path)
    if header is None:
        raise DatasetError("The Parquet file does not have rollax's header.", path).expected(
            "a file that rollax wrote",
            "pass its format, if RLlib wrote it; write other tables as CSV, or with rollax.DatasetWriter",
        )
    with decoding(_OURS, path):
        version = header.get("format_version", 0)
        if not isinstance(version, int):
            raise TypeError(f"format_version={version!r}")
        if version > FORMAT_VERSION:
            raise DatasetError("The file has a newer format.", path, f"format {version}").expected(
                f"format {FORMAT_VERSION} or older", "update rollax"
            )
        metadata = pq.read_metadata(path)
        contents = _object(parsed_json((metadata.metadata or {}).get(b"rollax.contents", b"{}")))
        _check_numbers(contents)
        _object(header.get("behaviour", {}))
        policies = {policy_id: _object(described) for policy_id, described in _object(header["policies"]).items()}
        columns = {i: Columns.from_json(_object(p["columns"])) for i, p in policies.items() if "columns" in p}
        return _File(path, header, columns, contents)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} in place of an object")
    return value


def _check_numbers(contents: Mapping[str, Any]) -> None:
    """Raises ValueError if a file's numbers of episodes and steps are invalid."""
    names = ["steps", "episodes", *(["episode_reward_mean"] if contents.get("episodes") else [])]
    for name in names:
        number = contents.get(name, None if name == "episode_reward_mean" else 0)
        in_range = isinstance(number, int | float) and (name == "episode_reward_mean" or 0 <= number < 2**63)
        if not in_range:
            raise ValueError(f"{name}={number!r}")
        float(number)  # OverflowError for a mean that no float holds


def _trajectories_of(
    table: pa.Table, columns: Mapping[str, Columns], wanted: set[str] | None, where: str
) -> Iterator[RecordedTrajectory]:
    last = table[IS_LAST].to_numpy()
    ends = np.flatnonzero(last)
    if not len(ends) or ends[-1] != len(last) - 1:
        raise ValueError("the last row ends no trajectory")
    starts = np.append(0, ends[:-1] + 1)
    ids = {name: _ids_at(table[name], starts, ends) for name in IDS}
    flags = {name: table[name].to_numpy()[ends - 1].astype(bool) for name in (TERMINATED, TRUNCATED)}
    nothing: list[Any] = [None] * len(ends)  # in files of older versions
    continues, left_out = (
        table[name].take(pa.array(rows)).to_pylist() if name in table.column_names else nothing
        for name, rows in ((CONTINUES, starts), (REWARD_LEFT_OUT, ends))
    )
    rewards_left_out = [None if reward is None else float(reward) for reward in left_out]
    agents = {text: id_from_text(text) for text in set(ids["agent_id"])}
    parts, shared = dict[str, _Part](), dict[tuple[str, ...], _Part]()
    for policy_id in dict.fromkeys(ids["policy_id"]):
        names = tuple(leaf.column for leaf in columns[policy_id].leaves())
        if names not in shared:
            shared[names] = _Part(table, columns[policy_id], wanted)
        parts[policy_id] = shared[names]
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        policy_id = ids["policy_id"][number]
        yield RecordedTrajectory(
            parts[policy_id].take(end - start),
            bool(flags[TERMINATED][number]),
            bool(flags[TRUNCATED][number]),
            ids["episode_id"][number],
            agents[ids["agent_id"][number]],
            policy_id,
            f"{where}, row {start}",
            bool(continues[number]),
            rewards_left_out[number],
        )


class _Part:
    """The columns of one or more policies in a table, read trajectory by trajectory."""

    def __init__(self, table: pa.Table, columns: Columns, wanted: set[str] | None) -> None:
        self._arrays: dict[str, Tree] = {
            name: trees.tree_map(lambda leaf: leaf.from_arrow(table[leaf.column]), tree)
            for name, tree in columns.items()
            if wanted is None or name in wanted
        }
        self._steps = self._trajectories = 0

    def take(self, steps: int) -> dict[str, Tree]:
        """The columns of the next trajectory, which are views."""
        first = self._steps
        first_obs = first + self._trajectories
        rows, rows_of_obs = slice(first, first + steps), slice(first_obs, first_obs + steps + 1)
        self._steps, self._trajectories = first + steps, self._trajectories + 1
        taken = {
            name: trees.index(tree, rows_of_obs if name in WITH_LAST else rows) for name, tree in self._arrays.items()
        }
        if trees.length(taken[SampleBatch.OBS]) != steps + 1 or trees.length(taken[SampleBatch.REWARDS]) != steps:
            raise ValueError("values are missing")
        return taken


def _ids_at(column: pa.ChunkedArray, starts: np.ndarray, ends: np.ndarray) -> list[str]:
    """The id of each trajectory; ValueError if it changes inside a trajectory."""
    encoded = column.combine_chunks().dictionary_encode()
    codes, texts = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    changes = np.flatnonzero(codes[1:] != codes[:-1])
    if not np.isin(changes, ends).all():
        raise ValueError("an id changes inside a trajectory")
    return [texts[code] for code in codes[starts].tolist()]
