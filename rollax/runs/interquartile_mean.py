"""The interquartile mean of the scores of several seeds, and its stratified bootstrap interval.

Source: Agarwal et al. (2021), arXiv:2108.13264, sections 4.1 and 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_DRAWS = 2000


def interquartile_mean(scores: np.ndarray, axis: int = 0) -> np.ndarray:
    """Returns the mean without the lowest and the highest quarter of the scores along an axis.

    Args:
        scores: [..., N, ...]; ⌊N / 4⌋ scores are left out at each end.
    Returns:
        [...] without the axis.
    """
    inside = np.moveaxis(np.sort(scores, axis=axis), axis, 0)
    left_out = len(inside) // 4
    return inside[left_out : len(inside) - left_out].mean(axis=0)


def bootstrap_interval(by_env: Sequence[np.ndarray], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the 95 % bootstrap interval of the interquartile mean.

    Scores are drawn with replacement within each environment (the strata), and then pooled.

    Args:
        by_env: for each environment the scores of its seeds, [seeds, ...].
        seed: seed of the draws.
    Returns:
        The 2.5 % and 97.5 % quantiles, each [...].
    """
    rng = np.random.default_rng(seed)
    drawn = [scores[rng.integers(len(scores), size=(_DRAWS, len(scores)))] for scores in by_env]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, axis=1), axis=1), (0.025, 0.975), axis=0)
    return low, high
