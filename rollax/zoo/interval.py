"""The prediction interval, in which the mean score of further seeds lies with a probability of 95 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

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
    half = student_quantile((1 + COVERAGE) / 2, n - 1) * deviation * math.sqrt(1 / n + 1 / number)
    mean = statistics.fmean(scores)
    return Interval(mean - half, mean + half)


def student_quantile(probability: float, degrees: int) -> float:
    """Returns the quantile of Student's t distribution for a probability above 0.5, by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, degrees: int) -> float:
    """Returns P(T ≤ t) for t ≥ 0 and a whole number of degrees of freedom.

    Source: Abramowitz and Stegun (1964), equations 26.7.3 and 26.7.4, with θ = arctan(t / √ν): P(|T| ≤ t) is
    2/π · (θ + sin θ · (cos θ + 2/3 · cos³ θ + …)) for odd ν, sin θ · (1 + 1/2 · cos² θ + 3/8 · cos⁴ θ + …) for even ν.
    """
    theta = math.atan2(t, math.sqrt(degrees))
    odd = degrees % 2 == 1
    term, total = (math.cos(theta) if odd else 1.0), 0.0
    for index in range(2 if odd else 1, degrees, 2):
        total += term
        term *= index / (index + 1) * math.cos(theta) ** 2
    inside = math.sin(theta) * total
    return 0.5 + (2 / math.pi * (theta + inside) if odd else inside) / 2
