"""`rollax zoo verify`: trains with an entry again, and compares the results with the measurement."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from rollax.errors import ConfigError
from rollax.zoo.conditions import differences, machine, versions
from rollax.zoo.entry import Entry, FirstPart, SeedResult
from rollax.zoo.interval import Interval, prediction_interval
from rollax.zoo.measuring import Show, train_first, train_seed

_FEWEST = 2


@dataclass(frozen=True)
class Verified:
    """The comparison of repeated trainings with the measurement of an entry.

    Args:
        whole: whether the seeds were trained to the end, or only their first parts.
        seeds: the seeds that ran.
        same_bits: for each seed, whether all weights have the same bits as in the measurement.
        same_steps: whether each seed has made the measured number of steps.
        different: how machine and versions differ from the measurement; if they differ, the bits may differ too.
        value: the mean over the seeds of their scores, or, in a first part, of the mean rewards of their training
            episodes so far. None if a first part has no ended episode.
        interval: the interval in which `value` lies with a probability of 95 %, if the entry is right.
    """

    whole: bool
    seeds: Sequence[int]
    same_bits: Sequence[bool]
    same_steps: bool
    different: Sequence[str]
    value: float | None
    interval: Interval | None

    @property
    def reproduced(self) -> bool:
        """Whether every bit is the same."""
        return all(self.same_bits)

    @property
    def inside(self) -> bool:
        """Whether the value is inside of the interval; True if there is no value or no interval."""
        return self.value is None or self.interval is None or self.interval.holds(self.value)

    @property
    def passed(self) -> bool:
        """Whether the entry is right.

        After whole trainings, the value must be inside of the interval. After first parts, all bits must be the same;
        if machine or versions differ, the same number of steps and a value inside of the interval are enough.
        """
        if self.whole:
            return self.inside
        return self.reproduced or (bool(self.different) and self.same_steps and self.inside)


def verify_first(entry: Entry, seeds: int | None = None, show: Show = print) -> Verified:
    """Trains the first iterations of the measured seeds again.

    Args:
        entry: an entry with at least two measured seeds.
        seeds: the number of its seeds to train; None for all.
        show: prints a line for each seed.
    Raises:
        ConfigError: the entry has not been measured with these settings, or has too few measured seeds.
    """
    measured, different = entry.figures, _different(entry)
    chosen = _chosen(entry, seeds)
    parts: list[FirstPart] = []
    for result in chosen:
        parts.append(train_first(entry, result.seed, measured.first_iterations))
        show(f"seed {result.seed}: {_bits(parts[-1].weights == result.first.weights)}")
    rewards = [part.reward for part in parts if part.reward is not None]
    earlier = [result.first.reward for result in measured.seeds if result.first.reward is not None]
    comparable = len(rewards) == len(parts) and len(earlier) == len(measured.seeds)
    return Verified(
        whole=False,
        seeds=[result.seed for result in chosen],
        same_bits=[part.weights == result.first.weights for part, result in zip(parts, chosen, strict=True)],
        different=different,
        value=fmean(rewards) if comparable else None,
        interval=prediction_interval(earlier, len(parts), measured.learned) if comparable else None,
        same_steps=all(part.steps == result.first.steps for part, result in zip(parts, chosen, strict=True)),
    )


def verify(entry: Entry, seeds: int | None = None, folder: Path | None = None, show: Show = print) -> Verified:
    """Trains the measured seeds again, to the end, and compares the mean of their scores.

    Args:
        entry: an entry with at least two measured seeds.
        seeds: the number of its seeds to train; None for all.
        folder: the folder in which the run folders are created; None uses a temporary folder.
        show: prints a line for each seed.
    Raises:
        ConfigError: the entry has not been measured with these settings, or has too few measured seeds.
    """
    if folder is None:
        with TemporaryDirectory(prefix="rollax-zoo-") as temporary:
            return verify(entry, seeds, Path(temporary), show)
    measured, different = entry.figures, _different(entry)
    chosen = _chosen(entry, seeds)
    scores, same_bits, same_steps = [], [], []
    for result in chosen:
        again, _ = train_seed(entry, result.seed, folder)
        scores.append(again.score)
        same_bits.append(again.weights == result.weights)
        same_steps.append(again.steps == result.steps)
        show(f"seed {result.seed}: score {scores[-1]:.5g}, measured {result.score:.5g}, {_bits(same_bits[-1])}")
    return Verified(
        whole=True,
        seeds=[result.seed for result in chosen],
        same_bits=same_bits,
        different=different,
        value=fmean(scores),
        interval=prediction_interval(measured.scores, len(scores), measured.learned),
        same_steps=all(same_steps),
    )


def _chosen(entry: Entry, seeds: int | None) -> Sequence[SeedResult]:
    found = entry.figures.seeds
    if len(found) < _FEWEST or (seeds is not None and not 1 <= seeds <= len(found)):
        raise ConfigError("The entry has too few seeds.", f"{entry.path}: measured.seeds", len(found)).expected(
            f"at least {max(_FEWEST, seeds or 0)}",
            f"measure more: rollax zoo measure {shlex.quote(str(entry.path))} --seeds {max(_FEWEST, seeds or 0)}",
        )
    return found[:seeds]


def _different(entry: Entry) -> list[str]:
    measured = entry.figures
    return [
        *differences(measured.machine, machine()),
        *differences(measured.versions, versions(entry.about.tags)),
    ]


def _bits(same: bool) -> str:
    return "all bits of the weights are the same" if same else "other bits in the weights"
