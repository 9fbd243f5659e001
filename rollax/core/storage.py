"""Folders that are written atomically, and arrays and plain values as bytes.

A folder is written under a temporary name, and renamed after its last file, a manifest with a SHA-256 per file. An
interrupted write therefore leaves only the temporary folder. Files are JSON and safetensors; nothing is pickled. Errors
are CheckpointErrors, except in `parsed_json` and `unique_keys`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from rollax.core.atomic_files import absolute, final_name, make_parents, new_folder
from rollax.core.memory import available_memory_bytes, gib
from rollax.errors import CheckpointError

MANIFEST = "manifest.json"

_MAX_DEPTH = 100
_MAX_JSON = 64 << 20  # bytes; the parsed values take many times as much memory
_SMALL, _SPARSE = 64 << 20, 1000  # a file system may compress a file, but not to a thousandth of its size

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
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
    """Writes a new folder atomically and returns its absolute path; the folder exists only when it is complete on disk.

    Args:
        files: file name -> content. Plain names of letters, digits and `_ . @ + = -`, no subfolders; other names are
            refused on reading.
        kind: the kind of folder, checked on reading.
        format_version: version of the layout of `files`, at least 1.
    Raises:
        CheckpointError: the folder exists, or the disk fails.
    """
    target = absolute(path, CheckpointError)
    manifest = _manifest(files, kind, format_version)
    with _named_errors("The folder could not be saved.", target):
        make_parents(target.parent)
        if os.path.lexists(target):
            fix = "choose another name, or remove it"
            raise CheckpointError("The folder to save to already exists.", where=target, expected="a new name", fix=fix)
        with new_folder(target) as temporary:
            for name, content in files.items():
                _write_file(temporary / name, content)
            _write_file(temporary / MANIFEST, manifest)
    _remove_leftovers(target.parent)
    return target


def read_directory(path: str | os.PathLike[str], *, kind: str, format_version: int) -> dict[str, bytes]:
    """Returns the files of a folder from `write_directory`, each checked against its SHA-256.

    Raises:
        CheckpointError: the folder or its manifest is missing, the folder is of another kind or a newer format, or a
            file is missing, truncated, changed, or too large to be read. Older formats are accepted.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise CheckpointError("The saved folder is of a different kind.", folder, manifest["kind"]).expected(
            kind, f"pass the folder of a {kind}"
        )
    if manifest["format_version"] > format_version:
        raise CheckpointError(
            "The saved folder has a newer format.", folder, f"format {manifest['format_version']}"
        ).expected(f"format {format_version} or older", "update rollax")
    with _named_errors("The saved folder cannot be read.", folder):
        _check_sizes(folder, manifest["files"])
        return {name: _read_file(folder / name, entry) for name, entry in manifest["files"].items()}


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the manifest of a saved folder: `format_version`, `kind`, and `files`, name to `{"sha256", "size"}`."""
    file = Path(path) / MANIFEST
    if not os.path.isfile(file):
        inside = _complete_inside(Path(path)) if os.path.isdir(path) else None
        raise CheckpointError(
            "This is not a saved folder, or it was never completed.",
            path,
            f"no {MANIFEST}" if os.path.isdir(path) else "no such folder",
        ).expected(
            f"a folder with a {MANIFEST}",
            "check the path" if inside is None else f"pass a saved folder inside it: {inside}",
        )
    with _named_errors("The manifest cannot be read.", file):
        _refuse_large_json(file, file.stat().st_size)
        data = file.read_bytes()
    manifest = from_json_bytes(data, where=str(file))
    if not _is_manifest(manifest):
        raise CheckpointError.damaged(file, "no list of files in it", "the manifest that was saved")
    return manifest


def _complete_inside(folder: Path) -> Path | None:
    """Returns the last complete folder by name inside this folder or its subfolders."""
    manifests = (*folder.glob(f"[!.]*/{MANIFEST}"), *folder.glob(f"[!.]*/[!.]*/{MANIFEST}"))
    return max((manifest.parent for manifest in manifests), default=None)


def newest(folder: str | os.PathLike[str], prefix: str) -> Path | None:
    """Returns the saved folder `prefix<digits>` with the largest number and a manifest, or None."""
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
    """Removes a saved folder, the manifest first, so that `newest` ignores a folder that is only partly removed."""
    with _named_errors("A saved folder could not be removed.", Path(path)):
        with suppress(FileNotFoundError):
            os.remove(Path(path) / MANIFEST)
        shutil.rmtree(path)


def arrays_to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns named arrays of any memory layout in the safetensors format; equal arrays give equal bytes."""
    plain: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        value = np.asarray(array)
        if value.dtype.name == "bfloat16":  # a dtype of JAX that NumPy lacks; float32 contains its values
            value = value.astype(np.float32)
        if value.dtype.name not in _DTYPES or name == "__metadata__":
            raise CheckpointError(
                "The array cannot be stored.", f"array {name!r}", f"{value.dtype} array of shape {value.shape}"
            ).expected(
                f"any name but '__metadata__', and one of {sorted(_DTYPES)}",
                "convert it to numbers, or store it as JSON",
            )
        # safetensors reads raw memory; for an array with strides it would silently store wrong values.
        plain[name] = np.asarray(value, order="C")
    return safetensors.numpy.save(plain)


def bytes_to_arrays(data: bytes, where: str = "arrays") -> dict[str, np.ndarray]:
    """Returns the arrays from `arrays_to_bytes`, writable; `where` is the file in errors."""
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError.damaged(where, str(error), "arrays in the safetensors format") from error


def to_json_bytes(data: Any) -> bytes:
    """Returns plain values as readable JSON; reading it returns equal values, with lists for tuples.

    Raises:
        CheckpointError: NaN or infinity, a key that is not a string, a value that JSON cannot store, or more than 100
            levels or 64 MiB.
    """
    try:
        _check_keys(data, _MAX_DEPTH)
        text = (json.dumps(data, allow_nan=False, ensure_ascii=False, indent=2) + "\n").encode()
        if len(text) > _MAX_JSON:
            raise ValueError(f"{len(text)} bytes of JSON; reading accepts at most {_MAX_JSON}")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError("The values cannot be stored as JSON.", None, str(error)).expected(
            f"dicts with string keys, lists, strings, finite numbers, booleans, None; {_MAX_DEPTH} levels",
            "store arrays with arrays_to_bytes, and NumPy numbers as Python ones",
        ) from error


def from_json_bytes(data: bytes, where: str = "JSON") -> Any:
    """Returns the values from `to_json_bytes`; `where` is the file in errors.

    Raises:
        CheckpointError: invalid UTF-8 or JSON, NaN or infinity, a repeated key, more than 100 levels, or text with half
            of a surrogate pair.
    """
    try:
        text = data.decode()
        values = json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=unique_keys)
        _check_keys(values, _MAX_DEPTH)
        _check_characters(text, values)
        return values
    except (ValueError, RecursionError) as error:
        raise CheckpointError.damaged(where, str(error), "strict JSON in UTF-8") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def parsed_json(text: str | bytes) -> Any:
    """Returns the values of JSON; raises ValueError for invalid JSON and for a repeated key."""
    return json.loads(text, object_pairs_hook=unique_keys)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object; raises ValueError for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a repeated key among {sorted(key for key, _ in pairs)}")
    return values


def _check_characters(text: str, values: Any) -> None:
    """Raises ValueError for half of a surrogate pair, such as "\\ud800", which no file or console can hold."""
    if _SURROGATE.search(text):  # usually a complete pair, for example of an emoji
        json.dumps(values, ensure_ascii=False).encode()


def _check_keys(data: Any, levels: int) -> None:
    if not isinstance(data, Mapping | list | tuple):
        return
    if not levels:
        raise ValueError(f"more than {_MAX_DEPTH} levels")
    if isinstance(data, Mapping):
        for key in data:
            # json.dumps would silently turn the key 1 into "1".
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a string")
        data = data.values()
    for value in data:
        _check_keys(value, levels - 1)


def _manifest(files: Mapping[str, bytes], kind: str, format_version: int) -> bytes:
    entries = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for name, content in files.items()
    }
    return to_json_bytes({"format_version": format_version, "kind": kind, "files": entries})


def _is_manifest(data: Any) -> bool:
    if not isinstance(data, dict) or not isinstance(data.get("files"), dict) or not isinstance(data.get("kind"), str):
        return False
    # The names are checked because a manipulated name could point outside of the folder.
    return type(data.get("format_version")) is int and all(
        _FILE_NAME.fullmatch(name) and isinstance(entry, dict) and {"sha256", "size"} <= entry.keys()
        for name, entry in data["files"].items()
    )


def _check_sizes(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses files whose sizes differ from the manifest, or that are too large, before any file is read."""
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError.damaged(file, "no such file", "the file that the manifest names")
        found = file.stat()
        if found.st_size != entry["size"]:
            raise CheckpointError.damaged(file, f"{found.st_size} bytes", f"{entry['size']} bytes")
        if file.suffix == ".json":
            _refuse_large_json(file, found.st_size)
        stored = found.st_blocks * 512  # 0 on file systems that do not count them
        if stored and found.st_size > max(_SMALL, _SPARSE * stored):
            raise CheckpointError.damaged(
                file, f"{found.st_size} bytes, of which {stored} are stored", "a file with all of its bytes"
            )
    total, there = sum(entry["size"] for entry in files.values()), available_memory_bytes()
    if total > there:
        raise CheckpointError.too_large("The saved folder needs", folder, f"files of {gib(total)}", gib(there)).fix(
            "open it on a machine with more memory, or save without the replay buffer"
        )


def _refuse_large_json(file: Path, size: int) -> None:
    if size > _MAX_JSON:
        raise CheckpointError.damaged(file, f"{size} bytes", f"at most {_MAX_JSON} bytes of JSON")


def _read_file(file: Path, entry: Mapping[str, Any]) -> bytes:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise CheckpointError.damaged(file, f"SHA-256 {digest}", f"SHA-256 {entry['sha256']}")
    return content


def _remove_leftovers(folder: Path) -> None:
    """Removes temporary folders of killed saves whose final folder exists; all others may belong to a running save."""
    with suppress(OSError):
        for name in os.listdir(folder):
            final = final_name(name)
            if final is not None and os.path.isfile(folder / final / MANIFEST):
                shutil.rmtree(folder / name, ignore_errors=True)


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


@contextmanager
def _named_errors(what: str, where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got = f"{type(error).__name__}: {error}"
        raise CheckpointError(what, where=where, got=got, fix=_FIXES.get(error.errno or 0)) from error
