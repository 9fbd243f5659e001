"""Folders of files on disk that are there whole or not at all, and arrays and plain values as bytes.

A folder is written under a temporary name beside its place, with a manifest (a SHA-256 per file) as the last file, and
then renamed: whoever dies halfway leaves only the temporary folder. Files are JSON and safetensors; nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from rollax.errors import CheckpointError

MANIFEST = "manifest.json"

_MAX_DEPTH = 100

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,199}")
_DTYPES = frozenset(["bool", *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8))])
_DTYPES |= {"float16", "float32", "float64"}
_FIXES = {
    errno.ENOSPC: "free some space on the disk, or save somewhere else",
    errno.EDQUOT: "free some of the disk quota, or save somewhere else",
    errno.EROFS: "save to a folder on a disk that can be written",
    errno.EACCES: "save to a folder that this user may write to",
    errno.EPERM: "save to a folder that this user may write to",
}


def write_directory(
    path: str | os.PathLike[str], files: Mapping[str, bytes], *, kind: str, format_version: int
) -> Path:
    """Writes a new folder that is complete on disk when this returns; until then nothing bears its name.

    Args:
        path: the folder to make; missing parents are made too.
        files: file name to content. Plain names of letters, digits and `_ . @ + = -`, no subfolders.
        kind: what the folder is, checked on reading: "checkpoint", "policy", ...
        format_version: version of the layout of `files`, at least 1.
    Returns:
        The absolute path of the folder.
    Raises:
        CheckpointError: the folder exists, a file name or content cannot be stored, or the disk refuses (full,
            read-only, ...). Nothing is left under `path`.
    """
    target = Path(os.path.abspath(path))
    _check_files(files, target)
    manifest = _manifest(files, kind, format_version)
    with _named_errors("The folder could not be saved.", target):
        _make_parents(target.parent)
        if os.path.lexists(target):
            raise CheckpointError(
                "The folder to save to exists.",
                where=target,
                expected="a new name",
                fix="choose another name, or remove it",
            )
        _remove_leftovers(target)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            os.mkdir(temporary)
            for name, content in files.items():
                _write_file(temporary / name, content)
            _write_file(temporary / MANIFEST, manifest)
            _sync_folder(temporary)
            os.rename(temporary, target)
            _sync_parent(target, temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return target


def read_directory(path: str | os.PathLike[str], *, kind: str, format_version: int) -> dict[str, bytes]:
    """The files of a folder that `write_directory` made, each checked against its SHA-256.

    Args:
        path: the folder.
        kind: what it must be.
        format_version: the newest version that the caller understands; an older one is returned too (see
            `read_manifest`).
    Raises:
        CheckpointError: the folder or its manifest is missing, it is of another kind or a newer format, or a file is
            missing, truncated or changed.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise CheckpointError(
            "A saved folder of another kind.", where=folder, got=manifest["kind"], expected=kind, fix=f"give a {kind}"
        )
    if manifest["format_version"] > format_version:
        raise CheckpointError(
            "A saved folder of a newer format.",
            where=folder,
            got=f"format {manifest['format_version']}",
            expected=f"format {format_version} or older",
            fix="update rollax",
        )
    with _named_errors("The saved folder cannot be read.", folder):
        return {name: _read_file(folder / name, entry) for name, entry in manifest["files"].items()}


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a saved folder: `format_version`, `kind`, and `files`, name to `{"sha256", "size"}`.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    file = Path(path) / MANIFEST
    if not os.path.isfile(file):
        inside = _complete_inside(Path(path))
        raise CheckpointError(
            "No saved folder, or one that was never completed.",
            where=path,
            got=f"no {MANIFEST}" if os.path.isdir(path) else "no such folder",
            expected=f"a folder with a {MANIFEST}",
            fix="check the path" if inside is None else f"give the folder of one that is inside: {inside}",
        )
    with _named_errors("The manifest cannot be read.", file):
        data = file.read_bytes()
    manifest = from_json_bytes(data, where=str(file))
    if not _is_manifest(manifest):
        raise _damaged(file, "no list of files in it", "the manifest that was saved")
    return manifest


def _complete_inside(folder: Path) -> Path | None:
    """The last by name of the complete folders in this one, or in those that are in it, as in that of a run."""
    manifests = (*folder.glob(f"[!.]*/{MANIFEST}"), *folder.glob(f"[!.]*/[!.]*/{MANIFEST}"))
    return max((manifest.parent for manifest in manifests), default=None)


def newest(folder: str | os.PathLike[str], prefix: str) -> Path | None:
    """The complete saved folder named `prefix` and then digits that has the largest number; None without any.

    The number in the name decides, never the time of a file. Temporary folders and those without a manifest are passed
    over; a damaged file is not: `read_directory` refuses it by name.
    """
    named = re.compile(re.escape(prefix) + r"([0-9]+)", re.ASCII)
    found: list[tuple[int, str]] = []
    if not os.path.lexists(folder):
        return None
    with _named_errors("The folder of saved folders cannot be read.", Path(folder)):
        for name in os.listdir(folder):
            match = named.fullmatch(name)
            if match and os.path.isfile(os.path.join(folder, name, MANIFEST)):
                found.append((int(match[1]), name))
    return Path(folder) / max(found)[1] if found else None


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Removes a saved folder. Whoever dies halfway leaves one that `newest` passes over: the manifest goes first.

    Raises:
        CheckpointError: the disk refuses.
    """
    with _named_errors("A saved folder could not be removed.", Path(path)):
        with suppress(FileNotFoundError):
            os.remove(Path(path) / MANIFEST)
        shutil.rmtree(path)


def arrays_to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Named arrays in the safetensors format, in any memory layout; the same bytes for the same arrays.

    Raises:
        CheckpointError: an array of objects, text or another type that the format does not know.
    """
    plain: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        value = np.asarray(array)
        if value.dtype.name not in _DTYPES or name == "__metadata__":
            raise CheckpointError(
                "An array that cannot be stored.",
                where=f"array {name!r}",
                got=f"{value.dtype} array of shape {value.shape}",
                expected=f"any name but '__metadata__', and one of {sorted(_DTYPES)}",
                fix="turn it into numbers, or store it as JSON",
            )
        # safetensors reads raw memory: of an array with strides it would silently store other numbers.
        plain[name] = np.asarray(value, order="C")
    return safetensors.numpy.save(plain)


def bytes_to_arrays(data: bytes, where: str = "arrays") -> dict[str, np.ndarray]:
    """The arrays that `arrays_to_bytes` stored, writable; `where` names the file in an error.

    Raises:
        CheckpointError: the bytes are no such arrays.
    """
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(where, str(error), "arrays in the safetensors format") from error


def to_json_bytes(data: Any) -> bytes:
    """Plain values as readable JSON that gives equal values back, but for tuples, which become lists.

    Raises:
        CheckpointError: NaN or infinity, a key that is no string, a value that JSON does not know, or more than 100
            levels.
    """
    try:
        _check_keys(data, _MAX_DEPTH)
        return (json.dumps(data, allow_nan=False, ensure_ascii=False, indent=2) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            "Values that cannot be stored as JSON.",
            got=str(error),
            expected=f"dicts with string keys, lists, strings, finite numbers, booleans, None; {_MAX_DEPTH} levels",
            fix="store arrays with arrays_to_bytes, and NumPy numbers as Python ones",
        ) from error


def from_json_bytes(data: bytes, where: str = "JSON") -> Any:
    """The values that `to_json_bytes` stored; `where` names the file in an error.

    Raises:
        CheckpointError: no UTF-8, no JSON, NaN or infinity in it, a repeated key, or more than 100 levels.
    """
    try:
        values = json.loads(data.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_unique)
        _check_keys(values, _MAX_DEPTH)
        return values
    except (ValueError, RecursionError) as error:
        raise _damaged(where, str(error), "strict JSON in UTF-8") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a repeated key among {sorted(key for key, _ in pairs)}")
    return values


def _check_keys(data: Any, levels: int) -> None:
    if not isinstance(data, Mapping | list | tuple):
        return
    if not levels:
        # Whoever walks through the values does so by recursion.
        raise ValueError(f"more than {_MAX_DEPTH} levels")
    if isinstance(data, Mapping):
        for key in data:
            # json.dumps would turn the key 1 into "1" without a word.
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no string")
        data = data.values()
    for value in data:
        _check_keys(value, levels - 1)


def _check_files(files: Mapping[str, bytes], target: Path) -> None:
    folded = [name.lower() for name in files if isinstance(name, str)]
    for name, content in files.items():
        plain = isinstance(name, str) and _FILE_NAME.fullmatch(name) and name.lower() != MANIFEST
        # Some file systems take two names that differ only in case for one.
        if not plain or folded.count(name.lower()) > 1:
            raise CheckpointError(
                "A file name that cannot be stored.",
                where=target,
                got=name,
                expected=f"a plain name of letters, digits and _ . @ + = -, used once, and not {MANIFEST}",
                fix="store ids inside a file, not as its name",
            )
        if not isinstance(content, bytes | bytearray):
            raise CheckpointError(
                "Content that is not bytes.",
                where=target / name,
                got=type(content).__name__,
                expected="bytes",
                fix="use arrays_to_bytes or to_json_bytes",
            )


def _manifest(files: Mapping[str, bytes], kind: str, format_version: int) -> bytes:
    entries = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for name, content in files.items()
    }
    if not isinstance(kind, str) or type(format_version) is not int or format_version < 1:
        raise CheckpointError(
            "A folder needs a kind and the version of its format.",
            got=f"kind={kind!r}, format_version={format_version!r}",
            expected="a string, and an integer of at least 1",
        )
    return to_json_bytes({"format_version": format_version, "kind": kind, "files": entries})


def _is_manifest(data: Any) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("files"), dict) or not isinstance(data.get("kind"), str):
        return False
    # The names are checked because a forged one could lead out of the folder.
    return type(data.get("format_version")) is int and all(
        _FILE_NAME.fullmatch(name) and isinstance(entry, dict) and {"sha256", "size"} <= entry.keys()
        for name, entry in data["files"].items()
    )


def _read_file(file: Path, entry: Mapping[str, Any]) -> bytes:
    if not file.is_file():
        raise _damaged(file, "no such file", "the file that the manifest names")
    if (size := file.stat().st_size) != entry["size"]:
        raise _damaged(file, f"{size} bytes", f"{entry['size']} bytes")
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise _damaged(file, f"SHA-256 {digest}", f"SHA-256 {entry['sha256']}")
    return content


def _damaged(where: Any, got: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "A damaged file.", where=where, got=got, expected=expected, fix="use an older checkpoint or another copy"
    )


def _make_parents(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_parents(folder.parent)
    with suppress(FileExistsError):  # another process may have been faster; a file in the way shows at the next step
        os.mkdir(folder)
    _sync_folder(folder.parent)


def _remove_leftovers(target: Path) -> None:
    """Removes what a save of the same name left behind when it was killed."""
    left = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{8}\.tmp")
    for name in os.listdir(target.parent):
        if left.fullmatch(name):
            shutil.rmtree(target.parent / name, ignore_errors=True)


def _write_file(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            written = os.write(descriptor, rest)
            if not written:
                raise OSError(errno.EIO, "nothing was written", str(file))
            rest = rest[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_parent(target: Path, temporary: Path) -> None:
    """Makes the rename last; where the disk refuses, takes it back, so that a failed save can be tried again."""
    try:
        _sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            os.rename(target, temporary)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder at all; there the rename is as durable as they make it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _named_errors(what: str, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got = f"{type(error).__name__}: {error}"
        raise CheckpointError(what, where=where, got=got, fix=_FIXES.get(error.errno or 0)) from error
