"""Parquet files of RLlib's new API stack: one row per step of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollax import trees
from rollax.batch import SampleBatch
from rollax.data.dataset import RecordedTrajectory
from rollax.data.formats.common import DEFAULT_AGENT, DEFAULT_POLICY, Assembler, FormatReader, columns_of
from rollax.data.limited_parquet import LimitedParquet
from rollax.errors import DatasetError

_FURTHER = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS)
_REQUIRED = ("eps_id", "obs", "actions", "rewards")


class RLlibParquetReader(FormatReader):
    """Reads files with the columns `eps_id, agent_id, module_id, obs, actions, rewards, new_obs, terminateds, ...`.

    The rows of an episode are joined, also over files, in the order of `t`. What follows a skipped file is a trajectory
    that continues one, and so are the rows of a single agent (without `agent_id`) that begin at t > 0. Files of whole
    episodes as bytes (`output_write_episodes=True`) hold pickles and are refused.

    RLlib records actions as its policies chose them: with its default `normalize_actions=True`, those of a bounded
    Box are in [-1, 1]. `actions_of="environment"` is for files with the actions that the environment received.

    Args:
        paths: the files.
        settings: as for `FormatReader`.
    """

    actions_of = "policy"

    def __init__(self, paths: Sequence[Path], **settings: Any) -> None:
        super().__init__(**settings)
        self._paths = list(paths)

    def _read(self) -> Iterator[RecordedTrajectory]:
        assembler = Assembler()
        for path in self._paths:
            try:
                pieces = list(self._pieces(path))
            except (DatasetError, ValueError, TypeError, OverflowError) as error:
                self.skip(error if isinstance(error, DatasetError) else _damaged(path, error))
                yield from assembler.rest()  # what follows may not be the next step
                continue
            for piece, continues in pieces:
                yield from assembler.add(*piece, continues=continues)
        yield from assembler.rest()

    def _pieces(self, path: Path) -> Iterator[tuple[tuple[Any, ...], bool]]:
        """The rows of each trajectory, and whether they are not the beginning of the episode if they are the first."""
        table = _table(path, self._max_decoded_gb)
        names, rows = table.column_names, table.num_rows
        ids = [
            table[name].to_pylist() if name in names else [default] * rows
            for name, default in (("eps_id", ""), ("agent_id", DEFAULT_AGENT), ("module_id", DEFAULT_POLICY))
        ]
        keys = [
            (str(episode), agent or DEFAULT_AGENT, module or DEFAULT_POLICY)
            for episode, agent, module in zip(*ids, strict=True)
        ]
        t = np.array(table["t"].to_pylist(), np.int64) if "t" in names else np.arange(rows)
        terminated, truncated = (
            np.array(table[name].to_pylist(), bool) if name in names else np.zeros(rows, bool)
            for name in ("terminateds", "truncateds")
        )
        columns = {
            SampleBatch.OBS: self._values(table, "obs", self.observation_space, path),
            SampleBatch.ACTIONS: self._values(table, "actions", self.action_space, path),
            SampleBatch.REWARDS: np.array(table["rewards"].to_pylist(), np.float64),
            SampleBatch.T: t,
            **{name: self._values(table, name, None, path) for name in _FURTHER if name in names},
        }
        following = self._values(table, "new_obs", self.observation_space, path) if "new_obs" in names else None
        groups: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(key, []).append(row)
        for key, group in groups.items():
            order = np.array(group)[np.argsort(t[group], kind="stable")]
            last = int(order[-1])
            part = {name: trees.index(column, order) for name, column in columns.items()}
            ends = bool(terminated[last]), bool(truncated[last])
            new_obs = None if following is None else trees.index(following, last)
            first = int(order[0])
            # A single agent acts from the first step on; others may enter later.
            single = "agent_id" not in names or not ids[1][first]
            continues = single and "t" in names and bool(t[first] > 0)
            yield (key, part, ends, new_obs, f"{path}, row {first}"), continues

    def _values(self, table: pa.Table, name: str, space: Any, path: Path) -> Any:
        field, column = table.schema.field(name), table[name]
        where = f"{path}, column {name!r}"
        kind = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string(kind):
            raise DatasetError(
                "A column of objects: packed or pickled values, which are never loaded.",
                where=where,
                got=kind,
                expected="numbers, or lists of numbers",
                fix="write the data again in RLlib with output_compress_columns=[] and output_write_episodes=False",
            )
        values = column.to_pylist()
        shape = (field.metadata or {}).get(b"ARROW:extension:metadata")
        if shape is not None and isinstance(described := json.loads(shape), list):
            values = [np.reshape(value, described) for value in values]
        return columns_of(space, values, name, str(path))


def _table(path: Path, max_gb: float) -> pa.Table:
    try:
        with LimitedParquet(path, max_gb) as parquet:
            table = parquet.read()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    missing = [name for name in _REQUIRED if name not in table.column_names]
    if missing:
        raise DatasetError(
            "A Parquet file without the columns of RLlib.",
            where=path,
            got=table.column_names,
            expected=f"{', '.join(_REQUIRED)}: missing {', '.join(missing)}",
            fix="write tabular data in RLlib: output_write_episodes=False",
        )
    return table


def _damaged(path: Path, error: Exception) -> DatasetError:
    return DatasetError(
        "A damaged file.",
        where=path,
        got=f"{type(error).__name__}: {error}",
        expected="a Parquet file with numbers in each row",
        fix="remove it, use another copy, or skip some with max_broken",
    )
