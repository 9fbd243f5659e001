"""Plots of learning curves: mean reward over environment steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.runs.results import number_in, read_results
from rollax.runs.stopping import WHERE_IN_RESULT

Curve = tuple[list[float], list[float]]


def curve(results: Sequence[Mapping[str, Any]], quantity: str) -> Curve:
    """Returns the environment steps and values of `quantity` (a key of `WHERE_IN_RESULT`) where both are present."""
    points = [
        (number_in(result, "timesteps_total"), number_in(result, *WHERE_IN_RESULT[quantity])) for result in results
    ]
    known = [(steps, value) for steps, value in points if steps is not None and value is not None]
    return [steps for steps, _ in known], [value for _, value in known]


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, title: str = "") -> None:
    """Writes a PNG with the training reward of each run as a line, and its greedy evaluations as dots.

    Args:
        runs: label -> result lines.
        out: path of the PNG; its folder is created.
        title: title of the plot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot, which has global state and selects a window system.
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (label, results) in enumerate(runs.items()):
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
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png")


def labelled(paths: Sequence[Path]) -> dict[str, tuple[list[dict[str, Any]], int]]:
    """Returns result lines and the number of unreadable lines per run, by folder name, or by path if names collide."""
    names = [(path if path.is_dir() else path.parent).resolve().name for path in paths]
    labels = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    return {label: read_results(path) for label, path in zip(labels, paths, strict=True)}
