"""The prediction interval, in which the mean score of further seeds lies with a probability of 95 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

COVERAGE = 0.95
LEAST_DEVIATION = 0.01
"""The least standard deviation that an interval assumes, as a share of the rise of the score during training."""


class Interval(NamedTuple):
    """A closed interval of scores."""

    low: float
    high: float

    def holds(self, score: float) -> bool:
        return self.low <= score <= self.high


def prediction_interval(scores: Sequence[float], number: int, learned: float) -> Interval:
    """Returns the Student-t prediction interval, at 95 %, of the mean score of further seeds.

    Source: e.g. Hahn and Meeker (1991), Statistical Intervals, section 4.8: for n measured scores with mean x and
    standard deviation s, the mean of m further scores lies in x ± t(0.975, n - 1) · s · √(1/n + 1/m), if all scores are
    normally distributed. Deviations: s is at least `LEAST_DEVIATION` · |`learned`|. Otherwise the interval would be a
    point if all scores of a solved task are equal, such as 500 on CartPole.

    Args:
        scores: [n] scores of the measured seeds, n ≥ 2.
        number: m, the number of further seeds.
        learned: the mean score minus the mean reward at the beginning of training.
    """
    n = len(scores)
    deviation = max(statistics.stdev(scores), LEAST_DEVIATION * abs(learned))
    half = float(stdtrit(n - 1, (1 + COVERAGE) / 2)) * deviation * math.sqrt(1 / n + 1 / number)
    mean = statistics.fmean(scores)
    return Interval(mean - half, mean + half)
