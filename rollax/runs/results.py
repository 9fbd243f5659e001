"""Result dicts: lines of strict JSON, flat scalars for loggers, numbers by path, and learning curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.core.atomic_files import absolute, read_regular
from rollax.core.figure_files import written_to
from rollax.core.storage import parsed_json
from rollax.errors import RollaxError

RESULTS_NAME = "result.jsonl"
SEED_FOLDER = "seed-"
"""The prefix of the names of the run folders in a folder of several seeds; the seed follows it."""
_MOST_BYTES = 1 << 30  # a line has some kB
WHERE_IN_RESULT = {
    "episode_reward_mean": ("episode_reward_mean",),
    "evaluation_reward_mean": ("evaluation", "episode_reward_mean"),
    "timesteps_total": ("timesteps_total",),
    "training_iteration": ("training_iteration",),
    "time_total_s": ("time_total_s",),
    "iterations_without_improvement": ("iterations_without_improvement",),
}
"""Stop condition -> path of its quantity in a result. The last one is in results only if it is a stop condition."""


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
    """Returns `value` as strict JSON: NaN and infinities become null, arrays lists, classes import paths."""
    # In ASCII, because some readers end a line at a Unicode line separator inside a string.
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def results_until(run: Path, iteration: int) -> list[dict[str, Any]]:
    """Returns the result lines of a run up to an iteration; none if they cannot be read."""
    try:
        results, _ = read_results(run)
    except RollaxError:
        return []
    return [result for result in results if (number_in(result, "training_iteration") or 0) <= iteration]


def seeds_in(folder: Path) -> list[Path]:
    """Returns the run folders in a folder of several seeds, sorted by seed, or in a folder of a sweep; else none."""
    if os.path.exists(folder / RESULTS_NAME) or not os.path.isdir(folder):
        return []
    names = os.listdir(folder)
    numbers = [name.removeprefix(SEED_FOLDER) for name in names if name.startswith(SEED_FOLDER)]
    if seeds := sorted(filter(str.isdigit, numbers), key=int):
        return [folder / f"{SEED_FOLDER}{number}" for number in seeds]
    return [run for name in sorted(names) if "=" in name for run in seeds_in(folder / name)]


def refuse_seeds_folder(folder: Path, error: type[RollaxError] = RollaxError) -> None:
    """Raises the error if the runs of several seeds are in the folder; the error names one of them."""
    if seeds := seeds_in(folder):
        raise error("The folder holds several runs.", str(folder), f"{len(seeds)} runs").expected(
            "one run", f"name one of them: {seeds[0]}"
        )


def read_results(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the result lines of a run folder or a `result.jsonl`, and the number of unreadable lines.

    Raises:
        RollaxError: there is no file, or no line that can be read, or the folder holds the runs of several seeds.
    """
    refuse_seeds_folder(run)
    path = run / RESULTS_NAME if os.path.isdir(run) else run
    results, unread = read_lines(path)
    if not results:
        raise RollaxError("The run has no results yet.", str(path), f"{unread} unreadable lines").expected(
            "one JSON object per line", "wait for the end of its first iteration, or name another run"
        )
    return results, unread


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the result lines of a file, possibly none, and the number of unreadable lines."""
    try:
        lines = read_regular(path, _MOST_BYTES).decode("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RollaxError("The results cannot be read.", str(path), error.strerror).expected(
            f"a run folder with a {RESULTS_NAME}", "check the path and the permissions"
        ) from error
    results: list[dict[str, Any]] = []
    unread = 0
    for line in filter(str.strip, lines):
        try:
            result = parsed_json(line)
        except (ValueError, RecursionError):
            result = None
        if isinstance(result, dict) and not _is_deep(result):
            results.append(result)
        else:
            unread += 1
    return results, unread


def curve(results: Sequence[Mapping[str, Any]], quantity: str) -> tuple[list[float], list[float]]:
    """Returns the environment steps and values of `quantity` (a key of `WHERE_IN_RESULT`) where both are present."""
    points = [
        (number_in(result, "timesteps_total"), number_in(result, *WHERE_IN_RESULT[quantity])) for result in results
    ]
    known = [(steps, value) for steps, value in points if steps is not None and value is not None]
    return [steps for steps, _ in known], [value for _, value in known]


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, title: str = "") -> None:
    """Draws the training reward of each run (label -> result lines) and its greedy evaluations.

    The suffix of `out` is the image format; ConfigError for an unknown one.
    """
    with written_to(out, 8, 5, dpi=120) as figure:
        axes = figure.add_subplot()
        for number, (label, results) in enumerate((_drawable(label), lines) for label, lines in runs.items()):
            steps, rewards = curve(results, "episode_reward_mean")
            marker = "." if len(steps) == 1 else ""
            axes.plot(steps, rewards, color=f"C{number % 10}", marker=marker, linewidth=1.5, label=label)
            steps, rewards = curve(results, "evaluation_reward_mean")
            if steps:
                evaluation = "greedy evaluation" if len(runs) == 1 else f"{label}, greedy evaluation"
                style = {"linestyle": ":", "marker": "o", "markersize": 3.5, "linewidth": 1}
                axes.plot(steps, rewards, color=f"C{number % 10}", label=evaluation, **style)
        axes.set_xlabel("environment steps")
        axes.set_ylabel("mean episode reward")
        axes.set_title(_drawable(title))
        axes.grid(alpha=0.3)
        lines = axes.get_lines()
        # Otherwise Matplotlib leaves out labels that begin with "_".
        axes.legend(lines, [str(line.get_label()) for line in lines], fontsize="small")


def _drawable(text: str) -> str:
    """The text without the bytes of a file name that are not UTF-8, which Matplotlib refuses."""
    return text.encode("utf-8", "replace").decode()


def labelled(paths: Sequence[Path]) -> dict[str, tuple[list[dict[str, Any]], int]]:
    """Returns result lines and the number of unreadable lines per run, by folder name, or by path if names collide."""
    whole = [absolute(path, RollaxError) for path in paths]
    names = [(path if os.path.isdir(path) else path.parent).name for path in whole]
    labels = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    return {label: read_results(path) for label, path in zip(labels, paths, strict=True)}


def _is_deep(value: Any, levels: int = 100) -> bool:
    """Returns whether a value is nested too deeply for recursion."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return levels == 0 or any(_is_deep(part, levels - 1) for part in parts)


def _finite(value: Any) -> float | None:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "tolist"):  # of NumPy, JAX or PyTorch
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, int | float):
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
    if hasattr(value, "tolist") and not isinstance(value, type):  # an array or a number of NumPy, JAX or PyTorch
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"
    return str(value)
