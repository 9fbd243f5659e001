"""Confidence intervals of estimates by the bootstrap over episodes."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rollax.offline.estimators.importance import Terms

_NORMAL = NormalDist()
_CELLS_AT_ONCE = 4_000_000
_ROUNDING = 1e-13  # relative spread that rounding causes in sums of equal numbers


class Interval(NamedTuple):
    """A confidence interval, and the standard deviation of the estimate over the resamples."""

    low: float
    high: float
    std: float


def bootstrap(
    terms: Terms, groups: np.ndarray | None = None, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The bias-corrected and accelerated (BCa) interval of an estimate.

    Source: Efron (1987), "Better bootstrap confidence intervals", sections 2 to 4: percentiles
        Φ(z0 + (z0 + z) / (1 - a · (z0 + z))) of the resampled estimates, with z0 from the share below the estimate
        and a from the jackknife. Groups are drawn or left out as a whole, see Davison and Hinkley (1997),
        "Bootstrap methods and their application", section 3.8.

    Args:
        terms: the estimate.
        groups: [n] numbers from 0 on, equal for terms that are not independent, such as the agents of an episode;
            None: all are independent.
        level: the share of such intervals that should contain the true value.
        resamples: how many times the episodes are drawn with replacement.
        seed: seed of the draws.
    Returns:
        The interval; both ends are the estimate if there is one group, or if all resamples give the same value.
        Resamples whose estimate is undefined (NaN) are left out. All three numbers are NaN if the estimate is NaN, if
        no resample is left, or if the estimate of a resample is infinite.
    """
    groups = np.arange(len(terms)) if groups is None else groups
    estimate, episodes = terms.value, int(groups.max()) + 1
    if np.isnan(estimate):
        return Interval(estimate, estimate, estimate)
    if episodes < 2:
        return Interval(estimate, estimate, 0.0)
    rng = np.random.default_rng(seed)
    at_once = max(_CELLS_AT_ONCE // len(terms), 1)
    drawn: list[np.ndarray] = []
    for first in range(0, resamples, at_once):
        count = min(at_once, resamples - first)
        counts = rng.multinomial(episodes, np.full(episodes, 1 / episodes), size=count)
        drawn.append(terms.weighted(counts.astype(np.float64)[:, groups]))
    values = _defined(np.concatenate(drawn))
    if not len(values):
        return Interval(math.nan, math.nan, math.nan)
    scale = float(np.abs(values).max())
    if not math.isfinite(scale):
        return Interval(math.nan, math.nan, math.nan)
    if np.ptp(values) <= _ROUNDING * scale:
        return Interval(estimate, estimate, 0.0)
    # Scaled, because squares and cubes of values near the largest float64 are not finite.
    std = scale * float((values / scale).std())
    # Ties count half, and the share stays within (0, 1), where the normal quantile is finite.
    below = (np.count_nonzero(values < estimate) + 0.5 * np.count_nonzero(values == estimate)) / len(values)
    bias = _NORMAL.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    left_out = _defined(terms.without_each(groups))
    deviations = left_out.mean() - left_out
    deviations /= np.abs(deviations).max(initial=0.0) or 1.0
    squares = float((deviations**2).sum())
    acceleration = float((deviations**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    tail = (1 - level) / 2
    low, high = (
        float(np.quantile(values, _percentile(_NORMAL.inv_cdf(share), bias, acceleration)))
        for share in (tail, 1 - tail)
    )
    return Interval(low, high, std)


def _defined(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def _percentile(z: float, bias: float, acceleration: float) -> float:
    scale = 1 - acceleration * (bias + z)
    if scale <= 0:  # the correction has no solution this far from the median
        return 1.0 if z > 0 else 0.0
    return _NORMAL.cdf(bias + (bias + z) / scale)
