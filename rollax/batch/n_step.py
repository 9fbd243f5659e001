"""n-step returns over rows in any order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Positions = NDArray[np.integer]


def dtype_of_returns(of_rewards: np.dtype) -> np.dtype:
    """Returns the dtype of the rewards, at least float32: discounted sums of integers or flags are fractions."""
    return np.promote_types(of_rewards, np.float32)


class Windows(NamedTuple):
    """The n steps from each of K rows on; see `n_step_windows`."""

    complete: Bools
    returns: NDArray[np.float64]
    discounts: NDArray[np.float64]
    targets: NDArray[np.int64]


def n_step_windows(
    rows: Positions,
    following: Positions,
    rewards: NDArray,
    terminated: Bools,
    truncated: Bools,
    observed: Bools,
    *,
    n_step: int | None,
    gamma: float,
) -> Windows:
    """Returns the discounted rewards of `n_step` steps from each row on, and the position of the next observation.

    Source: Sutton (1988), "Learning to predict by the methods of temporal differences", in the form of Hessel et al.
        (2018), section "Multi-step learning", arXiv:1710.02298: R_t = Σ_{k<n} γ^k · r_{t+k}, to which the learner adds
        γ^n times the value of s_{t+n}. Deviations: the trajectory may end after m < n steps. Then the sum has m terms,
        and the factor of the value is 0 if the trajectory terminated; it is γ^m if the trajectory was truncated, or if
        its next step is not available.

    Args:
        rows: [K] positions of rows.
        following: [positions] the position of the next row or observation; not read where the trajectory terminated.
        rewards: [positions] r.
        terminated: [positions]; truncated: [positions]: the trajectory ended with this row.
        observed: [positions] true where there is only an observation, without a step.
        n_step: n, at least 1; None: all steps up to the end of the trajectory. `rows` must then contain each row once;
            a window that reaches a position outside of `rows` is not complete.
        gamma: γ.
    Returns:
        `complete` [K]: false where an observed position ends the window too early, though the trajectory may go on;
        `returns` [K] R; `discounts` [K] the factors of the values; `targets` [K] the positions of the observations to
        be valued (if the trajectory terminated, the position of its last row).
    """
    if n_step is None:
        return _whole_windows(rows.astype(np.int64), following, rewards, terminated, truncated, gamma)
    at = rows.astype(np.int64)
    returns, discounts = np.zeros(len(at)), np.ones(len(at))
    complete = np.ones(len(at), np.bool_)
    walking = np.arange(len(at))
    for _ in range(n_step):
        positions = at[walking]
        waiting = observed[positions]
        if waiting.any():
            complete[walking[waiting]] = False
            walking, positions = walking[~waiting], positions[~waiting]
        returns[walking] += discounts[walking] * rewards[positions]
        over = terminated[positions]
        discounts[walking] *= np.where(over, 0.0, gamma)
        at[walking] = np.where(over, positions, following[positions])
        walking = walking[~(over | truncated[positions])]
    return Windows(complete, returns, discounts, at)


def _whole_windows(
    rows: NDArray[np.int64],
    following: Positions,
    rewards: NDArray,
    terminated: Bools,
    truncated: Bools,
    gamma: float,
) -> Windows:
    """Returns the windows up to the end of each trajectory: pointer doubling in log2(longest trajectory) passes."""
    count = len(rows)
    order = np.argsort(rows)
    in_order = rows[order]
    over = terminated[rows]
    after = np.where(over, rows, following[rows])
    found = np.searchsorted(in_order, after).clip(max=count - 1)
    ends = over | truncated[rows] | (in_order[found] != after)
    # [K + 1] the position in `rows` of the next row; K stands for the end of a window.
    following_row = np.append(np.where(ends, count, order[found]), count)
    returns = np.append(rewards[rows].astype(np.float64), 0.0)
    discounts = np.append(np.where(over, 0.0, gamma), 1.0)
    targets = np.append(after, 0)
    complete = np.append(over | truncated[rows], True)
    lasts = np.append(np.arange(count), count)  # the last row that a window has reached
    while (following_row < count).any():
        returns = returns + discounts * returns[following_row]
        discounts = discounts * discounts[following_row]
        lasts = np.where(following_row < count, lasts[following_row], lasts)
        following_row = following_row[following_row]
    return Windows(complete[lasts][:-1], returns[:-1], discounts[:-1], targets[lasts][:-1])
