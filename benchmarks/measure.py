"""Runs the sides of one benchmark in alternating rounds and computes figures and verdicts."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from benchmarks.processes import AliveSide, FreshSide, Side, start
from benchmarks.tables import hardware
from benchmarks.time_limit import OutOfTimeError, TimeLimit

_SETTLE_S = 0.3  # threads that spin for work before they sleep would perturb the side that follows
_LISTEN_S = 0.3
_SET_UP_S = 20.0  # a guess, for a machine that has not compiled anything before
BUSY_PERCENT = 10.0
"""Figures are marked if other programs used more of the processor than this, as libraries are affected unequally."""

_Figures = dict[str, list[float]]  # of each round of a side, by its name


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
    def gpus(self) -> int:
        """The largest number of GPUs that a side uses."""
        return max(side.gpus for side in self.sides)

    @property
    def least_seconds(self) -> float:
        """A guess of how long it takes to set up all sides and to do one round of each."""
        fresh = sum(side.until is not None for side in self.sides)
        alive = len(self.sides) - fresh
        set_up = _SET_UP_S * (1 if self.gpus else alive) if alive else 0.0
        return set_up + 2 * _SET_UP_S * fresh + alive * (self.seconds + _SETTLE_S + _LISTEN_S)


def measure(row: Row, *, log: bool = True, limit: TimeLimit | None = None) -> dict[str, Any]:
    """Returns the result of a benchmark: the rounds of each side and the verdict of each target.

    Args:
        row: the benchmark.
        log: whether the figures of each round are printed.
        limit: no round begins that would pass it, judged by the round before. With a limit, another library that fails
            to start is left out together with its targets.
    Raises:
        OutOfTimeError: the limit was reached before each side had a round.
    """
    limit = limit or TimeLimit()
    others: list[float] = []
    sides: list[AliveSide | FreshSide] = []
    try:
        with limit.enforced(), _set_up(row, limited=limit.exists) as sides:
            for number in range(row.rounds):
                start = time.monotonic()
                for side in sides:
                    others.append(_other_programs_percent())
                    side.round(row.seconds)
                if log:
                    shown = "   ".join(f"{side.side.name} {side.values[-1]:,.4g}" for side in sides)
                    print(f"  {shown}  {row.unit}", file=sys.stderr, flush=True)
                if number + 1 < row.rounds and not limit.allows(1.2 * (time.monotonic() - start)):
                    break
    except OutOfTimeError:
        if not sides or not all(side.values for side in sides):
            raise
    complete = min(len(side.values) for side in sides)  # a round that the limit interrupted does not count
    values = {side.side.name: side.values[:complete] for side in sides}
    cores = {side.side.name: side.cores[:complete] for side in sides}
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
            name: {
                "median": statistics.median(values[name]),
                "rounds": values[name],
                "cores": statistics.median(cores[name]),
                **side.facts,
            }
            for side in sides
            for name in [side.side.name]
        },
        "targets": [_verdict(row, target, values, cores) for target in row.targets if _side_beside(target) in values],
        "hardware": hardware(gpus=row.gpus),
        "other_programs_percent": busy,
    }


@contextmanager
def _set_up(row: Row, *, limited: bool) -> Iterator[list[AliveSide | FreshSide]]:
    """Sets up the sides of a benchmark, and ends them afterwards.

    If the time is limited, they are killed instead of asked to end, and other libraries that fail are left out.
    """
    running: list[AliveSide | FreshSide] = []
    # Compilation for a GPU takes longer than the rounds do, on few cores, so all sides compile at the same time there.
    groups = [row.sides] if row.gpus else [(side,) for side in row.sides]
    try:
        for group in groups:
            for side in group:
                with _tolerating(side, limited):
                    running.append(start(side))
            for one in [one for one in running if one.side in group]:
                with _tolerating(one.side, limited):
                    one.set_up()
                    continue
                running.remove(one)
                one.kill()
        yield running
    except BaseException:
        for side in running:
            side.kill()
        raise
    for side in running:
        side.kill() if limited else side.stop()


@contextmanager
def _tolerating(side: Side, limited: bool) -> Iterator[None]:
    """Prints why a side of another library does not start, if the time is limited, instead of raising it."""
    try:
        yield
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        if not limited or side.peer is None:
            raise
        print(f"  {side.name} is left out: {error}", file=sys.stderr, flush=True)


def _side_beside(target: Against | Bound) -> str:
    """Returns the name of the side that a target is about, besides rollax."""
    return target.side if isinstance(target, Bound) else target.other


def _other_programs_percent() -> float:
    """Returns the processor usage of other programs, measured while all sides wait."""
    time.sleep(_SETTLE_S)
    return psutil.cpu_percent(interval=_LISTEN_S)


def _verdict(row: Row, target: Against | Bound, values: _Figures, cores: _Figures) -> dict[str, Any]:
    """Returns a target with its measured value; a ratio is the median of the ratios of the rounds.

    `cpu_ratio` compares processor time in the place of time: rates per core in use, or durations times cores.
    """
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
    own, other = row.sides[0].name, target.other
    ratios, cpu_ratios = [], []
    for of_own, of_other, own_cores, other_cores in zip(
        values[own], values[other], cores[own], cores[other], strict=True
    ):
        ratios.append(of_own / of_other if row.better == "more" else of_other / of_own)
        if own_cores > 0:
            cpu_ratios.append(ratios[-1] * other_cores / own_cores)
    ratio = statistics.median(ratios)
    reached = None if target.at_least is None else ratio >= target.at_least
    return {
        "against": other,
        "at_least": target.at_least,
        "ratio": ratio,
        "ratios": [min(ratios), max(ratios)],
        "cpu_ratio": statistics.median(cpu_ratios) if cpu_ratios else None,
        "reached": reached,
    }
