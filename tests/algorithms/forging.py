"""Forged checkpoints: one value of a real checkpoint is replaced, and the manifest matches the change."""

import copy
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

COMMAND = {"$code": "rollax.env.recording:subprocess.run"}
"""A reference to code that once made restoring run a command."""

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 10**9, -(10**30), 2**63, 10**400, 0.5, -2.5, 1e308),
    *("", "x", "10", "nan", "os:system", "rollax.policy.policy:Policy", "rollax.core.storage:write_directory"),
    *([], [[]], [1, "x", None], {}, {"x": 1}, {"x": {"y": []}}, {"$array": "no such"}, {"$array": 3}),
    *({"$float": "nan"}, {"$float": "1"}, {"$float": []}, {"$tuple": [1]}, {"$tuple": 1}, {"$dict": [[1, 2]]}),
    *({"$code": 1}, COMMAND, {"$code": "rollax.core.storage:os.system"}, {"$code": "rollax.algorithms.ppo:PPO"}),
    *({"$unknown": 1}, {"type": "Discrete", "n": 10**9, "start": 0, "dtype": "int64"}, {"type": "Tuple", "spaces": []}),
    {"$space": {"type": "MultiBinary", "shape": [10**5, 10**5]}},
]


def nested(levels: int) -> Any:
    """Nested lists of so many levels."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of keys and positions to all values inside a JSON value."""
    if at:
        yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from paths_in(part, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at the path `at`; `...` removes the value."""
    value = copy.deepcopy(value)
    holder = value
    for key in at[:-1]:
        holder = holder[key]
    if new is ...:
        del holder[at[-1]]
    else:
        holder[at[-1]] = new
    return value


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """The arrays in a file's bytes."""
    return load(content)


def bytes_of(arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file with these arrays, of any shape and dtype."""
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def other_arrays(array: np.ndarray) -> Iterator[np.ndarray | None]:
    """Replacements for an array; None removes it."""
    yield from (None, np.zeros(0, array.dtype), np.zeros((3, 1, 2), array.dtype), np.zeros(array.shape, np.float16))
    yield from (array[None], np.full(array.shape, -7, np.int64), np.zeros(array.shape, np.bool_))
    if array.dtype.kind == "f":
        yield np.full(array.shape, np.nan, array.dtype)
    elif array.dtype.kind in "iu":
        yield np.full(array.shape, np.iinfo(array.dtype).max)


def write(files: dict[str, bytes], folder: Path) -> Path:
    """Writes the files of a checkpoint, and a manifest with their true hashes."""
    entries = {}
    for name, content in files.items():
        (folder / name).write_bytes(content)
        entries[name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    manifest = {"format_version": 3, "kind": "rollax-checkpoint", "files": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def refuse_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises an error that nothing expects as soon as a command runs."""

    def runs(*args: Any, **kwargs: Any) -> None:
        raise SystemError(f"a command ran: {args}")

    for module, name in ((subprocess, "run"), (subprocess, "Popen"), (os, "system")):
        monkeypatch.setattr(module, name, runs)
