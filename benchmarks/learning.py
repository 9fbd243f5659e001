"""What algorithms have learned, by `make learning`: a table for `BENCHMARKS.md` and pictures for the docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.peers import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "learning"
PICTURES = ROOT / "docs" / "curves"
_ACROSS = 3  # tasks beside each other
# Words stay words, and the same curves give the same file.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rollax", "font.size": 8}


def read_learned() -> list[dict[str, Any]]:
    """All that has been learned, by algorithm and task."""
    found = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    return sorted(found, key=lambda learned: (learned["algorithm"], learned["env"], learned["name"]))


def learning_table(results: Sequence[Mapping[str, Any]]) -> str:
    """One line for each task of each algorithm."""
    if not results:
        return ""
    lines = [
        "### What is learned",
        "",
        "The best of ten greedy evaluations within the steps, of 20 episodes each unless the test says otherwise: the "
        "mean of the seeds, each seed's own, and the mean of the last evaluations. `make learning` runs them; settings "
        "are in the tests.",
        "",
        "| algorithm | environment | test | within | must reach | best | by seed | last | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for learned in results:
        seeds = ", ".join(f"{max(score for _, score in curve):.4g}" for curve in learned["curves"])
        cells = (
            learned["algorithm"],
            learned["env"],
            _words(learned),
            f"{learned['budget']:,}",
            f"{learned['target']:g}",
            f"{learned['best']:.4g}",
            seeds,
            f"{learned['last']:.4g}",
            "reached" if learned["best"] >= learned["target"] else "**falls short**",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_learned(results: Sequence[Mapping[str, Any]], folder: Path = PICTURES) -> None:
    """Writes one picture for each algorithm, with a panel for each of its tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for algorithm, tasks in groupby(results, key=lambda learned: learned["algorithm"]):
            _draw(list(tasks)).savefig(folder / f"{algorithm.lower()}.svg", format="svg", metadata={"Date": None})


def _draw(tasks: Sequence[Mapping[str, Any]]) -> Figure:
    across = min(len(tasks), _ACROSS)
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(3.2 * across, 2.4 * down), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel, learned in zip(panels, tasks, strict=False):
        _draw_task(panel, learned)
    for panel in list(panels)[len(tasks) :]:
        panel.set_axis_off()
    return figure


def _draw_task(panel: Axes, learned: Mapping[str, Any]) -> None:
    for curve in learned["curves"]:
        steps, scores = np.transpose(curve)
        panel.plot(steps / 1000, scores, color="C0", linewidth=1, marker=".", markersize=3, alpha=0.7)
    panel.axhline(learned["target"], color="C7", linewidth=0.8, linestyle="--")
    panel.set_title(_words(learned), fontsize=8)
    panel.set_xlabel("thousand steps")
    panel.grid(alpha=0.3)


def _words(learned: Mapping[str, Any]) -> str:
    return learned["name"].removeprefix("test_").replace("_", " ")
