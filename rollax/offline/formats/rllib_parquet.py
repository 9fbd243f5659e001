"""Parquet files of RLlib's new API stack: one row per step of an agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import Space
from numpy.typing import NDArray

from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core.storage import parsed_json
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import DatasetError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import (
    MAX_DECODED_GB,
    FormatReader,
    Ids,
    check_decoded,
    checked_max_gb,
    columns_of,
    decoding,
    one_per_step,
)
from rollax.offline.formats.joining import Assembler, Piece
from rollax.offline.formats.limited_parquet import LimitedParquet

_OF_SPACES = ("obs", "actions", "new_obs")
_FURTHER = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS)
_REQUIRED = ("eps_id", "obs", "actions", "rewards")
_READ = {*_REQUIRED, *_OF_SPACES, *_FURTHER, SampleBatch.T, "agent_id", "module_id", "terminateds", "truncateds"}
_BYTES_OF_VALUE, _BYTES_OF_ROW = 40, 200  # as objects of Python: numbers in lists, and the ids of a row


class RLlibParquetReader(FormatReader):
    """Reads files with the columns `eps_id, agent_id, module_id, obs, actions, rewards, new_obs, terminateds, ...`.

    The rows of an episode are joined in the order of `t`, or of the rows if there is no `t`; also over files, which
    must be in time order. The trajectories of an episode are adjacent, unless an agent joins in a later file, after all
    others of the episode have ended. Rows after missing rows (see `Assembler`) are a trajectory that continues another
    one. Without `t`, the first episode after a skipped file is such a trajectory too. With `t`, so are the rows of a
    single agent (without `agent_id`) that begin at t > 0. Files of whole episodes as bytes
    (`output_write_episodes=True`) contain pickles and are refused.

    RLlib records its policies' actions: with its default `normalize_actions=True`, actions of a bounded Box are in
    [-1, 1]. `actions_of="environment"` is for files with the actions that the environment received.

    Args:
        paths: the files.
        max_decoded_gb: maximum GiB of a decoded file.
        settings: as for `FormatReader`.
    """

    actions_of = "policy"

    def __init__(self, paths: Sequence[Path], *, max_decoded_gb: float = MAX_DECODED_GB, **settings: Any) -> None:
        super().__init__(paths, **settings)
        self._max_decoded_gb = checked_max_gb(max_decoded_gb)

    def _read(self) -> Iterator[RecordedTrajectory]:
        assembler, cut, after_skipped = Assembler(self.skip), set(), False
        late: dict[Ids, int] = {}
        for path in self.paths:
            try:
                with decoding("a Parquet file with numbers in each row", path):
                    pieces = list(self._pieces(path, late, after_skipped=after_skipped))
            except DatasetError as error:
                self.skip(error)
                cut |= assembler.episodes
                assembler.finish_all()  # the next rows may not be the next steps
                after_skipped = True
                continue
            after_skipped = False
            for piece, continues in pieces:
                t = piece.columns.get(SampleBatch.T, [0])
                if t[0] > 0 and piece.key not in assembler:
                    late[piece.key] = int(t[0])
                assembler.add(piece, continues=continues)
            yield from assembler.release(assembler.episodes | cut)
        assembler.finish_all()
        self.left_out = assembler.left_out
        yield from assembler.release()

    def _pieces(self, path: Path, late: Mapping[Ids, int], *, after_skipped: bool) -> Iterator[tuple[Piece, bool]]:
        """The rows of each trajectory, and whether earlier rows are missing if these rows are its first.

        `late` has the first `t` of each trajectory that began in an earlier file at t > 0.
        """
        table = _table(path, self._max_decoded_gb)
        names, rows = table.column_names, table.num_rows
        ids = [
            _ids(table[name]) if name in names else [default] * rows
            for name, default in (("eps_id", ""), ("agent_id", None), ("module_id", None))
        ]
        keys = [
            (str(episode), _given(agent, DEFAULT_AGENT), _given(module, DEFAULT_POLICY))
            for episode, agent, module in zip(*ids, strict=True)
        ]
        t = np.array(table[SampleBatch.T].to_pylist(), np.int64) if SampleBatch.T in names else None
        terminated, truncated = (
            np.array(table[name].to_pylist(), bool) if name in names else np.zeros(rows, bool)
            for name in ("terminateds", "truncateds")
        )
        rewards = one_per_step(table["rewards"].to_pylist(), "rewards", str(path))
        values = {name: _values(table, name, path) for name in (*_OF_SPACES, *_FURTHER) if name in names}
        groups: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(key, []).append(row)
        for key, group in groups.items():
            order = np.array(group)
            if t is not None:
                order = order[np.argsort(t[group], kind="stable")]
            first, last = int(order[0]), int(order[-1])
            where = f"{path}, row {first}"
            _check_one_episode(order, t, terminated | truncated, key, where)
            if t is not None and t[last] < (begin := late.get(key, 0)):
                got = f"rows up to t = {t[last]}, after a file in which the episode begins at t = {begin}"
                place = f"{where}, episode {key[0]!r}, agent {key[1]!r}"
                raise DatasetError("The files are not in the order of time.", place, got).expected(
                    "the files of an episode in the order of its steps",
                    "pass a list of the files in the order in which they were written: "
                    'open_dataset(sorted(Path(folder).glob("*.parquet"), key=os.path.getmtime))',
                )
            observation_space, action_space = self.spaces_of(key[2], where)
            space_of = {"obs": observation_space, "new_obs": observation_space, "actions": action_space}
            part = {
                name: columns_of(space_of.get(name), column.rows(order, name, space_of.get(name), where), name, where)
                for name, column in values.items()
            }
            new_obs = part.pop("new_obs", None)
            part[SampleBatch.REWARDS] = rewards[order]
            if t is not None:
                part[SampleBatch.T] = t[order]
            ends = bool(terminated[last]), bool(truncated[last])
            if t is None:
                continues = after_skipped and key[0] == keys[0][0]
            else:  # a single agent acts from the first step on; others may join later
                continues = key[1] == DEFAULT_AGENT and ids[1][first] != DEFAULT_AGENT and bool(t[first] > 0)
            yield Piece(key, part, ends, new_obs, where), continues


def _ids(column: pa.ChunkedArray) -> list[Any]:
    """The ids of all rows; equal texts share one object."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column.to_pylist()
    ids: list[Any] = []
    for chunk in column.dictionary_encode().chunks:
        texts = [*chunk.dictionary.to_pylist(), None]
        ids += [texts[code] for code in chunk.indices.fill_null(len(texts) - 1).to_pylist()]
    return ids


def _given(value: Any, default: str) -> Any:
    """An id, or the default if RLlib wrote none or an empty string."""
    return default if value is None or value == "" else value


def _check_one_episode(order: NDArray, t: NDArray | None, ends: NDArray, key: Any, where: str) -> None:
    """Raises DatasetError if rows with the same ids belong to several episodes."""
    got = f"a step after the end of episode {key[0]!r}" if ends[order[:-1]].any() else None
    if got is None and t is not None and len(again := np.flatnonzero(np.diff(t[order]) == 0)):
        got = f"two rows with t = {t[order[again[0]]]}"
    if got is not None:
        place = f"{where}, agent {key[1]!r} of module {key[2]!r}"
        raise DatasetError("Rows of several episodes have the same ids.", place, got).expected(
            "an eps_id of its own for each episode", "give each episode another eps_id, or skip files with max_broken"
        )


@dataclass(frozen=True)
class _Column:
    """The values of a column; `flat`: each tensor is a flat list, without its shape."""

    values: list[Any]
    flat: bool = False

    def rows(self, chosen: NDArray, name: str, space: Space | None, where: str) -> list[Any]:
        rows = [self.values[row] for row in chosen.tolist()]
        if not self.flat or name not in _OF_SPACES:
            return rows
        if space is None:
            what = "The shape of a tensor column is pickled, as Ray 2.49 to 2.54 wrote it; pickles are never loaded."
            got = "ARROW:extension:metadata that is not JSON"
            fix = 'pass the spaces as settings: {"env": ID}, or observation_space and action_space'
            raise DatasetError(what, f"{where}, column {name!r}", got, expected="a space, which has the shape", fix=fix)
        shape = space.shape
        if shape is None or any(np.size(row) != np.prod(shape) for row in rows):
            return rows  # refused later as values outside the space
        return [np.reshape(row, shape) for row in rows]


def _values(table: pa.Table, name: str, path: Path) -> _Column:
    field, column = table.schema.field(name), table[name]
    kind = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string(kind):
        what = "A column contains packed or pickled objects, which are never loaded."
        raise DatasetError(what, f"{path}, column {name!r}", kind).expected(
            "numbers, or lists of numbers", "write it with output_compress_columns=[] and output_write_episodes=False"
        )
    values = column.to_pylist()
    metadata = (field.metadata or {}).get(b"ARROW:extension:metadata")
    if metadata is None:
        return _Column(values)
    try:
        shape = parsed_json(metadata)
    except ValueError:
        return _Column(values, flat=True)
    return _Column([np.reshape(value, shape) for value in values] if isinstance(shape, list) else values)


def _table(path: Path, max_gb: float) -> pa.Table:
    with LimitedParquet(path, max_gb) as parquet:
        if missing := [name for name in _REQUIRED if name not in parquet.names]:
            raise DatasetError("The Parquet file lacks columns of RLlib.", path, parquet.names).expected(
                f"{', '.join(_REQUIRED)}: missing {', '.join(missing)}",
                "write the data again in RLlib with output_write_episodes=False",
            )
        names = [name for name in parquet.names if name in _READ]
        size = _BYTES_OF_VALUE * parquet.values(names) + _BYTES_OF_ROW * parquet.metadata.num_rows
        check_decoded(size, max_gb, path)
        return parquet.read(names)
