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
from rollax.data.formats.common import DEFAULT_AGENT, DEFAULT_POLICY, FormatReader, columns_of, one_per_step
from rollax.data.formats.joining import Assembler, HeldEpisodes
from rollax.data.limited_parquet import LimitedParquet
from rollax.errors import DatasetError

_FURTHER = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS)
_REQUIRED = ("eps_id", "obs", "actions", "rewards")


class RLlibParquetReader(FormatReader):
    """Reads files with the columns `eps_id, agent_id, module_id, obs, actions, rewards, new_obs, terminateds, ...`.

    The rows of an episode are joined, also over files, in the order of `t`. The trajectories of an episode follow one
    another, unless an agent enters in a later file, after all others of the episode have ended. What follows a skipped
    file is a trajectory that continues one, and so are the rows of a single agent (without `agent_id`) that begin at
    t > 0. Files of whole episodes as bytes (`output_write_episodes=True`) hold pickles and are refused.

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
        assembler, held, cut = Assembler(self.skip), HeldEpisodes(), set()
        for path in self._paths:
            try:
                pieces = list(self._pieces(path))
            except (DatasetError, ValueError, TypeError, OverflowError) as error:
                self.skip(error if isinstance(error, DatasetError) else _damaged(path, error))
                cut |= assembler.episodes
                held.add(assembler.rest())  # what follows may not be the next step
                continue
            for piece, continues in pieces:
                held.add(assembler.add(*piece, continues=continues))
            yield from held.release(assembler.episodes | cut)
        held.add(assembler.rest())
        yield from held.release()

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
        rewards = one_per_step(table["rewards"].to_pylist(), "rewards", str(path))
        values = {
            name: _values(table, name, path) for name in ("obs", "actions", "new_obs", *_FURTHER) if name in names
        }
        groups: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(key, []).append(row)
        for key, group in groups.items():
            order = np.array(group)[np.argsort(t[group], kind="stable")]
            last = int(order[-1])
            first = int(order[0])
            where = f"{path}, row {first}"
            observation_space, action_space = self.spaces_of(key[2], where)
            space_of = {"obs": observation_space, "actions": action_space}
            part = {
                name: columns_of(space_of.get(name), [column[row] for row in order], name, where)
                for name, column in values.items()
                if name != "new_obs"
            }
            part |= {SampleBatch.REWARDS: rewards[order], SampleBatch.T: t[order]}
            ends = bool(terminated[last]), bool(truncated[last])
            new_obs = None
            if "new_obs" in values:
                new_obs = trees.index(columns_of(observation_space, [values["new_obs"][last]], "new_obs", where), 0)
            # A single agent acts from the first step on; others may enter later.
            single = "agent_id" not in names or not ids[1][first]
            continues = single and "t" in names and bool(t[first] > 0)
            yield (key, part, ends, new_obs, where), continues


def _values(table: pa.Table, name: str, path: Path) -> list[Any]:
    field, column = table.schema.field(name), table[name]
    kind = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string(kind):
        raise DatasetError(
            "A column of objects: packed or pickled values, which are never loaded.",
            where=f"{path}, column {name!r}",
            got=kind,
            expected="numbers, or lists of numbers",
            fix="write the data again in RLlib with output_compress_columns=[] and output_write_episodes=False",
        )
    values = column.to_pylist()
    shape = (field.metadata or {}).get(b"ARROW:extension:metadata")
    if shape is not None and isinstance(described := json.loads(shape), list):
        values = [np.reshape(value, described) for value in values]
    return values


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
