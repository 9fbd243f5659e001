"""Columns of recorded experience in files, which are written once, one fragment after another, and then mapped.

A folder holds the rows of several policies. Rows are stored trajectory by trajectory; each trajectory that does not
terminate is followed by its last observation. A column of a nested space has a file for each of its arrays.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment
from rollax.core import atomic_files, trees
from rollax.core.storage import parsed_json
from rollax.errors import CheckpointError, DatasetError
from rollax.replay.fragment_checks import Layout, check_fragment, check_layouts, empty_column, layout_of, layout_to_json

_MANIFEST, _FORMAT = "columns.json", 1
_MOST_BYTES = 1 << 30
_LEFT_FOR_S = 3600.0
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors of reading a description that is damaged, or that `ColumnWriter` did not write."""
_INDEX = {"starts": np.dtype("<i8"), "lasts": np.dtype("<i8"), "terminated": np.dtype("?")}


class ColumnWriter:
    """Writes fragments of whole trajectories into the column files of a folder; DatasetError if the disk fails.

    `finish` gives the complete folder its name, and replaces an existing folder. `columns` are the columns to store,
    by policy id.
    """

    def __init__(self, path: Path, columns: Mapping[str, tuple[str, ...]]) -> None:
        self._path = path
        self._columns = columns
        self._temporary = atomic_files.temporary_for(path)
        self._files: dict[str, BinaryIO] = {}
        self._layouts: dict[str, dict[str, Layout]] = {}
        self._slots = dict.fromkeys(columns, 0)
        try:
            atomic_files.make_parents(path.parent)
            _remove_leftovers(path)
            os.mkdir(self._temporary)
        except OSError as error:
            raise _failed(error, path) from error

    def add(self, policy_id: str, fragment: Fragment) -> None:
        """Appends the rows of a fragment."""
        names, where = self._columns[policy_id], f"recorded data of policy {policy_id!r}"
        fragment = check_fragment(fragment, names, where)
        layouts = self._layouts.setdefault(policy_id, {name: layout_of(fragment[name]) for name in names})
        check_layouts(fragment, layouts, where)
        rows, goes_on, behind = fragment.extended()
        size = len(rows) + len(goes_on)
        number = list(self._columns).index(policy_id)
        try:
            for name in names:
                # By key: Dicts may have their keys in another order than in the first fragment.
                column = trees.zeros_like(empty_column(layouts[name], where), size)
                trees.put(column, rows, fragment[name])
                if name in fragment.after:
                    trees.put(column, behind, trees.index(fragment.after[name], goes_on))
                for part, leaf in enumerate(trees.leaves(column)):
                    self._append(_file_name(number, name, part), leaf)
            first = self._slots[policy_id]
            index = {
                "starts": first + rows[fragment.starts],
                "lasts": first + rows[fragment.ends],
                "terminated": ~np.isin(np.arange(len(fragment.ends)), goes_on),
            }
            for name, dtype in _INDEX.items():
                self._append(_file_name(number, f"@{name}", 0), index[name].astype(dtype))
        except OSError as error:
            raise _failed(error, self._path) from error
        self._slots[policy_id] += size

    def finish(self, about: Mapping[str, Any]) -> dict[str, MappedColumns]:
        """Completes the folder and returns its columns, as `open_columns`; `about` is stored with it, as JSON values.

        If several processes write the same folder, the one that is finished last is kept; each process uses the
        columns that it wrote itself.
        """
        policies = {
            policy_id: {
                "slots": self._slots[policy_id],
                "columns": {name: layout_to_json(layout) for name, layout in self._layouts.get(policy_id, {}).items()},
            }
            for policy_id in self._columns
        }
        manifest = {"format": _FORMAT, "about": dict(about), "policies": policies}
        try:
            self._append(_MANIFEST, np.frombuffer(json.dumps(manifest).encode(), np.uint8))
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            atomic_files.sync_folder(self._temporary)
            columns = open_columns(self._temporary)
            assert columns is not None
            self._replace()
            atomic_files.sync_folder(self._path.parent)
        except OSError as error:
            raise _failed(error, self._path) from error
        return columns

    def discard(self) -> None:
        """Removes the written files, unless `finish` has completed the folder."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _append(self, name: str, array: NDArray) -> None:
        if name not in self._files:
            self._files[name] = open(self._temporary / name, "xb")  # noqa: SIM115  closed by finish or discard
        self._files[name].write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)

    def _replace(self) -> None:
        """Gives the folder its name; the files of an older folder stay mapped in processes that use them."""
        while True:
            try:
                os.rename(self._temporary, self._path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            old = atomic_files.temporary_for(self._path)
            with suppress(FileNotFoundError):  # another process has just removed it
                os.rename(self._path, old)
            shutil.rmtree(old, ignore_errors=True)


class MappedColumns:
    """The columns of one policy in a folder, mapped into memory; pages that were read can be released.

    Attributes:
        slots: number of rows plus number of last observations.
        columns: name -> column.
        starts, lasts: [P] the slots of the first and the last row of each trajectory.
        terminated: [P] whether each trajectory terminated.
    """

    def __init__(self, folder: Path, number: int, about: Mapping[str, Any]) -> None:
        self.folder, self.number = folder, number
        self._maps: list[mmap.mmap] = []
        self.slots = int(about["slots"])
        self.columns: dict[str, trees.Tree] = {}
        for name, layout in about["columns"].items():
            self.columns[name] = self._mapped(name, empty_column(layout, f"{folder}, column {name!r}"))
        self.starts, self.lasts, self.terminated = (self._index(name) for name in _INDEX)
        ends = self.lasts + ~self.terminated
        chained = len(self.starts) and np.array_equal(self.starts, np.append(0, ends[:-1] + 1))
        if not chained or ends[-1] + 1 != self.slots or (self.lasts < self.starts).any():
            raise ValueError("trajectories that are not contiguous")

    def map(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray:
        """The file `name` as a read-only array; ValueError if the file has another size."""
        dtype, path = np.dtype(dtype), self.folder / name
        expected = dtype.itemsize * int(np.prod(shape))
        if path.stat().st_size != expected:
            raise ValueError(f"{name}: {path.stat().st_size} bytes, not {expected}")
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), expected, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        self._maps.append(mapped)
        return np.frombuffer(mapped, dtype).reshape(shape)

    def release(self) -> None:
        """Releases the memory of the pages that were read; the system may keep them as a cache of the files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Empties `columns`, and unmaps the files once no array of them is in use."""
        self.columns, self._maps = {}, []

    def _mapped(self, name: str, empty: trees.Tree) -> trees.Tree:
        parts = iter(range(len(list(trees.leaves(empty)))))

        def mapped(leaf: NDArray) -> NDArray:
            return self.map(_file_name(self.number, name, next(parts)), leaf.dtype, (self.slots, *leaf.shape[1:]))

        return trees.tree_map(mapped, empty)

    def _index(self, name: str) -> NDArray:
        return np.fromfile(self.folder / _file_name(self.number, f"@{name}", 0), _INDEX[name])


def _remove_leftovers(path: Path) -> None:
    """Removes files of killed processes; a process that still writes has changed a file recently."""
    for folder in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):
            changed = max(file.stat().st_mtime for file in (folder, *folder.iterdir()))
            if time.time() - changed > _LEFT_FOR_S:
                shutil.rmtree(folder, ignore_errors=True)


def read_about(path: Path) -> dict[str, Any] | None:
    """The `about` of `ColumnWriter.finish`; None if the folder is missing or its description is damaged."""
    manifest = _manifest(path)
    return None if manifest is None else manifest["about"]


def open_columns(path: Path) -> dict[str, MappedColumns] | None:
    """Policy id -> its columns, for the policies that have rows; None if the folder is damaged or missing."""
    manifest = _manifest(path)
    if manifest is None:
        return None
    try:
        return {
            policy_id: MappedColumns(path, number, about)
            for number, (policy_id, about) in enumerate(manifest["policies"].items())
            if about["slots"]
        }
    except (OSError, CheckpointError, *_DAMAGED):
        return None


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = parsed_json(atomic_files.read_regular(path / _MANIFEST, _MOST_BYTES))
        return manifest if manifest["format"] == _FORMAT and isinstance(manifest["about"], dict) else None
    except (OSError, *_DAMAGED):
        return None


def _file_name(number: int, column: str, part: int) -> str:
    return f"{number}-{column}-{part}.bin"


def _failed(error: OSError, path: Path) -> DatasetError:
    what, got = "The columns of recorded data cannot be written.", f"{type(error).__name__}: {error}"
    fix = "free some space on the disk, or name another input_folder"
    return DatasetError(what, str(path), got, expected="a folder with room for the decoded data", fix=fix)
