"""Returns of n steps, over rows that follow each other in any way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Positions = NDArray[np.integer]


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
    n_step: int,
    gamma: float,
) -> Windows:
    """Discounted rewards of `n_step` steps from each row on, and the observation that is to be valued after them.

    Source: Sutton (1988), "Learning to predict by the methods of temporal differences", in the form of Hessel et al.
        (2018), section "Multi-step learning", arXiv:1710.02298: R_t = Σ_{k<n} γ^k r_{t+k}, to which the learner adds
        γ^n times the value of s_{t+n}. Deviations: after m < n steps the trajectory may end. Then the sum has m terms;
        the value's factor is γ^m where it was truncated, or where its next step is not known, and 0 where it
        terminated.

    Args:
        rows: [K] positions of rows.
        following: [positions] the position of what came next; not read where the trajectory terminated.
        rewards: [positions] r.
        terminated: [positions]; truncated: [positions]: the trajectory ended with this row.
        observed: [positions] true where there is only an observation: no step has been made there.
        n_step: n, at least 1.
        gamma: γ.
    Returns:
        `complete` [K]: false where an observed position ends the window too early, though the trajectory may go on;
        `returns` [K] R; `discounts` [K] the factors of the values; `targets` [K] the positions of the observations to
        be valued (of a row after which the trajectory terminated: that of its last row).
    """
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
