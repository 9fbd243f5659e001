"""Result dicts: as lines of strict JSON, as flat scalars for TensorBoard, and their numbers by path."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.errors import RollaxError

RESULTS_NAME = "result.jsonl"


def number_in(result: Mapping[str, Any], *path: str) -> float | None:
    """Returns the number at `path` in the nested `result`; None if it is missing or not finite."""
    value: Any = result
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return _finite(value)


def flat_scalars(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Returns the finite numbers of a nested result, with names like `info/learner/default_policy/kl`."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flat_scalars(value, f"{prefix}{key}/")
        elif (number := _finite(value)) is not None:
            yield f"{prefix}{key}", number


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns `value` as strict ASCII JSON: NaN and infinities become null, arrays lists, classes import paths.

    ASCII, because some readers end a line at a Unicode line separator inside a string.
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def read_results(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the result lines of a run folder or a `result.jsonl`, and the number of unreadable lines.

    Raises:
        RollaxError: there is no such file, or no readable line in it.
    """
    path = run / RESULTS_NAME if run.is_dir() else run
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RollaxError(
            "Results that cannot be read.",
            where=str(path),
            got=error.strerror,
            expected=f"a run folder with a {RESULTS_NAME}",
        ) from error
    results: list[dict[str, Any]] = []
    unread = 0
    for line in filter(str.strip, lines):
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            result = None
        if isinstance(result, dict) and not _is_deep(result):
            results.append(result)
        else:
            unread += 1
    if not results:
        raise RollaxError(
            "No results yet.", where=str(path), got=f"{unread} unreadable lines", expected="one JSON object per line"
        )
    return results, unread


def _is_deep(value: Any, levels: int = 100) -> bool:
    """Returns whether a value is nested too deeply for recursion."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deep(part, levels - 1) for part in parts)


def _finite(value: Any) -> float | None:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating | np.ndarray):
        return None
    if isinstance(value, np.ndarray) and value.ndim:
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer too large for a float
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"
    return str(value)
