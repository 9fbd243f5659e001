"""`LiveCurves`: a picture of many runs that is drawn again while they go on."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rollax.core.figure_files import written_to
from rollax.errors import RollaxError
from rollax.runs.interquartile_mean import bootstrap_interval, interquartile_mean
from rollax.runs.results import RESULTS_NAME, curve, read_results

_EVERY_S = 10.0
_SHARE = 0.05
"""The largest share of time that drawing takes."""
_POINTS = 50
_MOST_COLORS = 10
_MOST_LABELS = 16

Curve = tuple[list[float], list[float]]
"""The environment steps of a run, and the values there."""


class LiveCurves:
    """A picture with the interquartile mean of each group of runs, and its interval.

    Args:
        out: the file; its suffix is the image format.
        quantity: what is drawn, a key of `WHERE_IN_RESULT`.
        title: a text above the curves.
        quiet: print no lines, except failures of `finish`.
    """

    def __init__(self, out: Path, quantity: str, title: str = "", *, quiet: bool = False) -> None:
        self.runs: Mapping[str, Sequence[Path]] = {}
        """Label of a group -> its run folders, which may not exist yet."""
        self._out, self._quantity, self._title, self._quiet = out, quantity, title, quiet
        self._due = time.monotonic() + _EVERY_S
        self._read: dict[Path, tuple[int, Curve]] = {}  # with the size of the file

    def update(self) -> None:
        """Draws the picture and prints a line, at most every 10 seconds; other calls do nothing."""
        if (began := time.monotonic()) < self._due:
            return
        line = self.draw()
        if line and not self._quiet:
            print(line, flush=True)
        now = time.monotonic()
        self._due = now + max(_EVERY_S, (now - began) / _SHARE)

    def finish(self) -> None:
        """Draws the last picture; a failure is only printed, because no result depends on it."""
        if (failure := self._draw(self._groups())) is not None:
            print(failure, file=sys.stderr, flush=True)

    def draw(self) -> str:
        """Draws the picture, and returns a line about the best group or a failure; "" if no run has a value yet."""
        groups = self._groups()
        return "" if not groups else self._draw(groups) or _line(groups, self._quantity)

    def _groups(self) -> dict[str, list[Curve]]:
        groups = {label: [one for run in runs if (one := self._curve(run))[0]] for label, runs in self.runs.items()}
        return {label: curves for label, curves in groups.items() if curves}

    def _draw(self, groups: Mapping[str, Sequence[Curve]]) -> str | None:
        """Draws the picture if there are values; returns a text about a failure."""
        if not groups:
            return None
        temporary = self._out.with_name(f".{self._out.name}")  # a reader never sees half a picture
        try:
            draw_groups(groups, self._quantity, temporary, self._title)
            os.replace(temporary, self._out)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return f"The curves were not drawn: {error}"
        return None

    def _curve(self, run: Path) -> Curve:
        try:
            size = os.stat(run / RESULTS_NAME).st_size
            if self._read.get(run, (None,))[0] != size:
                self._read[run] = size, curve(read_results(run)[0], self._quantity)
        except (OSError, RollaxError):
            return [], []
        return self._read[run][1]


def draw_groups(groups: Mapping[str, Sequence[Curve]], quantity: str, out: Path, title: str = "") -> None:
    """Draws the interquartile mean of each group over environment steps; if there is one group, also its single runs.

    At each number of steps, the mean and its bootstrap interval are of the runs that have reached it.
    """
    import matplotlib

    with written_to(out, 8, 5, dpi=120) as figure:
        axes = figure.add_subplot()
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.95, len(groups)))
        for number, (label, curves) in enumerate(groups.items()):
            color = f"C{number}" if len(groups) <= _MOST_COLORS else shades[number]
            if len(groups) == 1:
                for steps, values in curves:
                    axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.7)
            steps, middle, low, high = middle_of(curves)
            name = label or f"interquartile mean of {len(curves)} run{'s' * (len(curves) > 1)}"
            marker = "." if len(steps) == 1 else ""
            axes.plot(steps, middle, color=color, marker=marker, linewidth=2, label=name)
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        axes.set_title(title)
        axes.set_xlabel("environment steps")
        axes.set_ylabel(quantity.replace("_", " "))
        axes.grid(alpha=0.3)
        if len(groups) <= _MOST_LABELS:
            axes.legend(fontsize="small")
        else:
            axes.legend(fontsize="x-small", ncols=2, loc="center left", bbox_to_anchor=(1, 0.5))


def middle_of(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns steps [P], and for each the interquartile mean and its 95 % interval over the runs that have reached it.

    Values are linear between results.
    """
    first, last = min(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves)
    at = np.linspace(first, last, _POINTS if last > first else 1)
    values = np.array([np.interp(at, *one, left=np.nan, right=np.nan) for one in curves])
    present, which = np.unique(~np.isnan(values), axis=1, return_inverse=True)
    found = np.full((3, len(at)), np.nan)
    for number, runs in enumerate(present.T):
        if runs.any():
            columns = which == number
            some = values[np.ix_(runs, columns)]
            found[:, columns] = interquartile_mean(some), *bootstrap_interval([some])
    middle, low, high = found
    return at, middle, low, high


def _line(groups: Mapping[str, Sequence[Curve]], quantity: str) -> str:
    scores = {label: np.array([values[-1] for _, values in curves]) for label, curves in groups.items()}
    best = max(scores, key=lambda label: float(interquartile_mean(scores[label])))
    low, high = bootstrap_interval([scores[best]])
    of = f"best so far {best}: " if len(groups) > 1 else ""
    interval = f" ({low:.4g} to {high:.4g})" if len(scores[best]) > 1 else ""
    middle = interquartile_mean(scores[best])
    return f"{of}interquartile mean {middle:.4g}{interval} of the last {quantity} of {len(scores[best])} runs"
