"""Decodes recorded data into column files, and checks existing column files before they are used again."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.atomic_files import absolute
from rollax.errors import ConfigError
from rollax.offline.column_files import ColumnWriter, MappedColumns, open_columns, read_about
from rollax.offline.reader import FORMATS, paths_of
from rollax.offline.recorded_fragments import RecordedFragments

log = logging.getLogger("rollax.offline")


@dataclass
class Decoded:
    """The columns of a data set, by policy id."""

    columns: dict[str, MappedColumns]
    trajectories: int
    fingerprint: int


class DecodedData:
    """A decoded data set, in its own folder inside `input_folder`.

    Later runs use the folder again while the files of the data have the same names, sizes and modification times, and
    the settings that determine the rows are the same. Data is decoded for every run if it comes from a reader or a
    function, if user code reads the files or derives columns, or if an agent id is neither a string nor an integer.

    Args:
        described: policy id -> all settings that determine its rows, as JSON values.
        by_own_code: whether the user's own code derives columns, which these settings do not determine.
    """

    def __init__(
        self,
        folder: Path,
        source: Any,
        settings: Mapping[str, Any],
        described: Mapping[str, Mapping[str, Any]],
        *,
        by_own_code: bool = False,
    ) -> None:
        self._files = _files_of(source)
        self._by_own_code = by_own_code or settings.get("format", "auto") not in ("auto", *FORMATS)
        self._key = json.loads(json.dumps({"settings": settings, "policies": described}, default=str))
        name = json.dumps([self._key, [file for file, *_ in self._files or ()]], sort_keys=True)
        self._path = folder / f"data-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    def opened(self, fragments: RecordedFragments) -> Decoded | None:
        """The existing columns; None if they are missing, damaged or of other data, or are decoded for every run."""
        if self._files is None or self._by_own_code:
            return None
        about = read_about(self._path)
        if about is None or about.get("files") != self._files or (agents := about.get("agents")) is None:
            return None
        columns = open_columns(self._path) if _is_complete(about) else None
        if columns is None:
            log.warning("%s is damaged: the data is decoded again.", self._path)
            return None
        if any(fragments.policy_id(agent, recorded) != ours for agent, recorded, ours in agents):
            return None  # policy_mapping_fn has changed
        return Decoded(columns, about["trajectories"], about["fingerprint"])

    def decode(self, fragments: RecordedFragments, columns: Mapping[str, tuple[str, ...]]) -> Decoded:
        """Decodes the data; memory holds one fragment at a time."""
        writer, first, fingerprint = ColumnWriter(self._path, columns), fragments.trajectories, 0
        log.info("Recorded data is decoded into %s.", self._path)
        try:
            for policy_id, fragment in fragments:
                writer.add(policy_id, fragment)
                fingerprint = fingerprint_of(fragment, columns[policy_id], fingerprint)
            agents: Any = [[agent, recorded, ours] for (agent, recorded), ours in fragments.policy_ids.items()]
            if not all(isinstance(agent, str | int) for agent, *_ in agents):
                agents = None
            numbers = {"trajectories": fragments.trajectories - first, "fingerprint": fingerprint}
            found = writer.finish({**self._key, "files": self._files, "agents": agents, **numbers})
        finally:
            writer.discard()
        return Decoded(found, **numbers)


def _is_complete(about: Mapping[str, Any]) -> bool:
    """Whether a description has the agents and the numbers that `decode` writes."""
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
