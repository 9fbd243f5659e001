"""Runs the sides of one benchmark in alternating rounds and computes figures and verdicts."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from benchmarks.processes import AliveSide, FreshSide, Side, start
from benchmarks.tables import hardware

_SETTLE_S = 0.3  # threads that spin for work before they sleep would perturb the side that follows
_LISTEN_S = 0.3
BUSY_PERCENT = 10.0
"""Figures are marked if other programs used more of the processor than this, as libraries are affected unequally."""


@dataclass(frozen=True)
class Against:
    """The ratio of rollax to the side `other` must be `at_least` this; with None the ratio is only reported."""

    other: str
    at_least: float | None = None


@dataclass(frozen=True)
class Bound:
    """The figure of the side `side` must be at least or at most `limit`."""

    side: str
    sense: Literal["at least", "at most"]
    limit: float


@dataclass(frozen=True)
class Row:
    """One benchmark: its sides and its targets.

    Args:
        name: the argument of `--only`, and the name in the tables of results.
        work: description of the measured work, shown in the tables.
        unit: of the figures.
        better: whether larger or smaller figures are better.
        sides: the first is rollax.
        targets: one line of the table each.
        rounds: number of rounds per side; the sides alternate.
        seconds: duration of a round that measures a rate.
        notes: information for judging the comparison.
    """

    name: str
    work: str
    unit: str
    better: Literal["more", "less"]
    sides: tuple[Side, ...]
    targets: tuple[Against | Bound, ...]
    rounds: int = 7
    seconds: float = 3.0
    notes: str = ""

    @property
    def needs_gpu(self) -> bool:
        """Whether a side uses a GPU."""
        return any(side.gpu for side in self.sides)


def measure(row: Row, *, log: bool = True) -> dict[str, Any]:
    """Returns the result of a benchmark: the rounds of each side and the verdict of each target."""
    running: list[AliveSide | FreshSide] = []
    values: dict[str, list[float]] = {side.name: [] for side in row.sides}
    others: list[float] = []
    try:
        running.extend(start(side) for side in row.sides)
        for _ in range(row.rounds):
            for side in running:
                others.append(_other_programs_percent())
                values[side.side.name].append(side.round(row.seconds))
            if log:
                shown = "   ".join(f"{name} {rounds[-1]:,.4g}" for name, rounds in values.items())
                print(f"  {shown}  {row.unit}", file=sys.stderr, flush=True)
    finally:
        for side in running:
            side.stop()
    facts = {side.side.name: side.facts for side in running}
    busy = statistics.median(others)
    if busy > BUSY_PERCENT:
        print(f"  other programs used {busy:.0f} % of the processor: not for keeping", file=sys.stderr, flush=True)
    return {
        "name": row.name,
        "work": row.work,
        "unit": row.unit,
        "better": row.better,
        "notes": row.notes,
        "seconds_per_round": row.seconds,
        "sides": {
            name: {"median": statistics.median(rounds), "rounds": rounds, **facts[name]}
            for name, rounds in values.items()
        },
        "targets": [_verdict(row, target, values) for target in row.targets],
        "hardware": hardware(gpu=row.needs_gpu),
        "other_programs_percent": busy,
    }


def _other_programs_percent() -> float:
    """Returns the processor usage of other programs, measured while all sides wait."""
    time.sleep(_SETTLE_S)
    return psutil.cpu_percent(interval=_LISTEN_S)


def _verdict(row: Row, target: Against | Bound, values: dict[str, list[float]]) -> dict[str, Any]:
    """Returns a target with its measured value; a ratio is the median of the ratios of the rounds."""
    if isinstance(target, Bound):
        measured = statistics.median(values[target.side])
        reached = measured >= target.limit if target.sense == "at least" else measured <= target.limit
        return {
            "side": target.side,
            "sense": target.sense,
            "limit": target.limit,
            "figure": measured,
            "reached": reached,
        }
    pairs = zip(values[row.sides[0].name], values[target.other], strict=True)
    ratios = [own / other if row.better == "more" else other / own for own, other in pairs]
    ratio = statistics.median(ratios)
    reached = None if target.at_least is None else ratio >= target.at_least
    return {
        "against": target.other,
        "at_least": target.at_least,
        "ratio": ratio,
        "ratios": [min(ratios), max(ratios)],
        "reached": reached,
    }
