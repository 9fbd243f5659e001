"""Decodes recorded data into column files, and checks existing column files before they are used again."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.atomic_files import absolute
from rollax.errors import ConfigError
from rollax.offline.column_files import ColumnWriter, MappedColumns, open_columns, read_about
from rollax.offline.reader import FORMATS, paths_of
from rollax.offline.recorded_fragments import RecordedFragments

log = logging.getLogger("rollax.offline")


class Decoded(NamedTuple):
    """The columns of a data set, by policy id, with the number of its trajectories and the checksum of its rows."""

    columns: dict[str, MappedColumns]
    trajectories: int
    fingerprint: int


def decoded_data(
    folder: Path,
    source: Any,
    settings: Mapping[str, Any],
    described: Mapping[str, Mapping[str, Any]],
    fragments: RecordedFragments,
    columns: Mapping[str, tuple[str, ...]],
    *,
    by_own_code: bool,
) -> Decoded:
    """A data set, decoded into its own folder inside `folder`, the `input_folder` of a config.

    Later runs use the folder again while the files of the data have the same names, sizes and modification times, and
    the settings that determine the rows are the same. Data is decoded for every run if it comes from a reader or a
    function, if user code reads the files or derives columns, or if an agent id is neither a string nor an integer.

    Args:
        described: policy id -> all settings that determine its rows, as JSON values.
        fragments: the data; memory holds one fragment at a time.
        columns: policy id -> the columns to store.
        by_own_code: whether the user's own code derives columns, which these settings do not determine.
    """
    files = _files_of(source)
    key = json.loads(json.dumps({"settings": settings, "policies": described}, default=str))
    name = json.dumps([key, [file for file, *_ in files or ()]], sort_keys=True)
    path = folder / f"data-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    by_own_code = by_own_code or settings.get("format", "auto") not in ("auto", *FORMATS)
    found = None if files is None or by_own_code else _existing(path, files, fragments)
    return found or _decode(path, {**key, "files": files}, fragments, columns)


def _existing(path: Path, files: list[list[Any]], fragments: RecordedFragments) -> Decoded | None:
    """The columns in a folder; None if they are missing, damaged or of other data, or are decoded for every run."""
    about = read_about(path)
    if about is None or about.get("files") != files or (agents := about.get("agents")) is None:
        return None
    columns = open_columns(path) if _is_complete(about) else None
    if columns is None:
        log.warning("%s is damaged: the data is decoded again.", path)
        return None
    if any(fragments.policy_id(agent, recorded) != ours for agent, recorded, ours in agents):
        return None  # policy_mapping_fn has changed
    return Decoded(columns, about["trajectories"], about["fingerprint"])


def _decode(
    path: Path, about: Mapping[str, Any], fragments: RecordedFragments, columns: Mapping[str, tuple[str, ...]]
) -> Decoded:
    writer, first, fingerprint = ColumnWriter(path, columns), fragments.trajectories, 0
    log.info("Recorded data is decoded into %s.", path)
    try:
        for policy_id, fragment in fragments:
            writer.add(policy_id, fragment)
            fingerprint = fingerprint_of(fragment, columns[policy_id], fingerprint)
        agents: Any = [[agent, recorded, ours] for (agent, recorded), ours in fragments.policy_ids.items()]
        if not all(isinstance(agent, str | int) for agent, *_ in agents):
            agents = None
        numbers = {"trajectories": fragments.trajectories - first, "fingerprint": fingerprint}
        return Decoded(writer.finish({**about, "agents": agents, **numbers}), **numbers)
    finally:
        writer.discard()


def _is_complete(about: Mapping[str, Any]) -> bool:
    """Whether a description has the agents and the numbers that `_decode` writes."""
    agents, numbers = about["agents"], (about.get("trajectories"), about.get("fingerprint"))
    return (
        isinstance(agents, list)
        and all(isinstance(entry, list) and [*map(type, entry)][1:] == [str, str] for entry in agents)
        and all(isinstance(entry[0], str | int) for entry in agents)
        and all(type(number) is int and number >= 0 for number in numbers)
    )


def fingerprint_of(fragment: Fragment, columns: Collection[str], before: int) -> int:
    """A checksum of the rows of a fragment and of all rows before it, the same for data in memory and on disk.

    Args:
        before: the checksum of the earlier rows; 0 if there are none.
        columns: the stored columns; flags of terminations and truncations are always included.
    """
    names = sorted({*columns, SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS})
    for tree in (*(fragment[name] for name in names), fragment.after[SampleBatch.OBS]):
        for leaf in trees.leaves(tree):
            before = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data, before)
    return before


def check_folder(folder: str, source: Any, key: Literal["input_folder", "output"]) -> None:
    """Refuses to write into a folder inside a source, because the next run would read the written files as data."""
    if isinstance(source, str | Path):
        outer, inner = (Path(os.path.realpath(absolute(path, ConfigError))) for path in (source, folder))
        if inner.is_relative_to(outer) if os.path.exists(source) else _begins(inner.parts, outer.parts):
            what = "A folder that this run writes lies inside the data."
            got = f"{folder!r}, with the data {str(source)!r}"
            left = ", and remove column files (data-*/columns.json) that an earlier run has left inside of it"
            fix = f"choose a folder outside the data{left if key == 'input_folder' else ''}"
            raise ConfigError(what, f"config key {key!r}", got, expected="a folder outside the data", fix=fix)
    elif isinstance(source, list | tuple):
        for part in source:
            check_folder(folder, part, key)


def _begins(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a pattern, as `glob` reads it, matches the beginning of a path."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_begins(path[start:], pattern[1:]) for start in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _begins(path[1:], pattern[1:])


def _files_of(source: Any) -> list[list[Any]] | None:
    """`[path, size, modification time]` of all files of a source; None for a reader or a function."""
    if isinstance(source, str | Path):
        inside = [file for path in paths_of(source) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        stats = [(file, file.stat()) for file in inside if file.is_file()]
        return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]
    if not isinstance(source, list | tuple):
        return None
    parts = [_files_of(part) for part in source]
    return None if None in parts else [file for part in parts for file in part or ()]
