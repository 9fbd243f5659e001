"""The results of `make learning`: a table for `BENCHMARKS.md`, learning curves for the docs and the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.peers import ROOT
from benchmarks.tables import LEARNING, Result, read_table
from rollax.zoo import Entry, entries

PICTURES = ROOT / "docs" / "curves"
_ACROSS = 3  # panels in a row
_OVERVIEW = {  # the picture of the README
    "ppo_cartpole": "PPO, CartPole-v1",
    "dqn_lunar_lander": "DQN, LunarLander-v3",
    "sac_pendulum": "SAC, Pendulum-v1",
    "appo_cartpole_with_workers": "APPO with two workers, CartPole-v1",
    "rainbow_pong": "Rainbow, ALE/Pong-v5",
    "qmix_lift": "QMIX, two agents lift a load",
}
# Text stays text, and equal curves give equal files.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rollax", "font.size": 8}


def read_learned() -> list[Result]:
    """Returns the results of all learning runs and of the zoo, sorted by algorithm and task."""
    results = [*read_table(LEARNING).values(), *map(_of_entry, entries())]
    return sorted(results, key=lambda learned: (learned["algorithm"], learned["env"], learned["name"]))


def _of_entry(entry: Entry) -> Result:
    """Returns the measured curves of an entry of the zoo as the result of a learning run."""
    figures = entry.figures
    return {
        "name": entry.name,
        "algorithm": entry.algorithm,
        "env": entry.env,
        "budget": int(entry.experiment.stop["timesteps_total"]),
        "target": entry.about.target,
        "curves": [result.curve for result in figures.seeds],
        "best": figures.best,
        "last": fmean(result.curve[-1][1] for result in figures.seeds),
    }


def learning_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table with one line for each task of each algorithm."""
    if not results:
        return ""
    lines = [
        "### Learning results",
        "",
        "The best of ten greedy evaluations within the budget, of 20 episodes each unless the test states otherwise "
        "(PPO draws its actions in MinAtar): "
        "the mean over the seeds, the value of each seed, and the mean of the last evaluations. `make learning` "
        "repeats the runs; the settings are in the tests and in the zoo ([docs/zoo.md](docs/zoo.md)), whose last "
        "evaluation is the score after training.",
        "",
        "| algorithm | environment | test | budget (steps) | must reach | best | by seed | last | |",
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
    """Writes one picture for each algorithm, with a panel for each of its tasks, and the overview of the README."""
    folder.mkdir(parents=True, exist_ok=True)
    by_name = {learned["name"].removeprefix("test_"): learned for learned in results}
    overview = {title: by_name[name] for name, title in _OVERVIEW.items() if name in by_name}
    with matplotlib.rc_context(_STYLE):
        _draw(overview, folder / "overview.svg")
        for algorithm, tasks in groupby(results, key=lambda learned: learned["algorithm"]):
            _draw({_words(learned): learned for learned in tasks}, folder / f"{algorithm.lower()}.svg")


def _draw(tasks: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Writes a picture with one panel for each task, under its title."""
    across = min(len(tasks), _ACROSS)
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(3.2 * across, 2.4 * down), layout="constrained")
    FigureCanvasSVG(figure)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, (title, learned) in zip(panels, tasks.items(), strict=False):
        panel.set_title(title, fontsize=8)
        _draw_task(panel, learned)
    for panel in panels[len(tasks) :]:
        panel.set_axis_off()
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_task(panel: Axes, learned: Mapping[str, Any]) -> None:
    for curve in learned["curves"]:
        steps, scores = np.transpose(curve)
        panel.plot(steps / 1000, scores, color="C0", linewidth=1, marker=".", markersize=3, alpha=0.7)
    panel.axhline(learned["target"], color="C7", linewidth=0.8, linestyle="--")
    panel.set_xlabel("thousand steps")
    panel.grid(alpha=0.3)


def _words(learned: Mapping[str, Any]) -> str:
    return learned["name"].removeprefix("test_").replace("_", " ")
