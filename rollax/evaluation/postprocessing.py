"""Returns and advantages over all trajectories of a batch at once, in NumPy.

Rows are flat: sorted by trajectory segment, in time order inside each, with `last` true on the last row of every
segment. Nothing is padded to the longest segment, so lengths of 1 and 1000 may stand side by side.

A segment ends because its episode terminated, because it was truncated, or because the fragment was full. The last two
look the same here: both go on from their real next observation, whose value the caller gives. Only termination is a
flag, so nothing in this file can confuse it with truncation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.errors import BatchError, ShapeError

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


def discounted_suffix_sums(x: ArrayLike, decay: ArrayLike, last: Bools) -> NDArray[np.float32]:
    """Sums of what follows inside each segment: y_i = x_i + decay_i · y_{i+1}, with 0 beyond the segment's last row.

    Source: Hillis and Steele (1986), "Data parallel algorithms", doi:10.1145/7902.7903: the recurrence is a scan with
        (y, c)_i ← (y_i + c_i y_{i+s}, c_i c_{i+s}) for s = 1, 2, 4, ..., so log2(longest segment) passes over the rows.

    Args:
        x: [N] terms.
        decay: one number, or [N]; what it says on a segment's last row does not matter.
        last: [N] true on the last row of each segment.
    Returns:
        [N] sums, accumulated in float64.
    Raises:
        ShapeError: columns of different lengths.
        BatchError: the last row ends no segment.
    """
    terms = np.asarray(x)
    _check_rows(last, x=terms)
    return _suffix_sums(terms, decay, last).astype(np.float32)


def generalized_advantages(
    rewards: Floats,
    values: Floats,
    next_values_at_last: Floats,
    terminateds: Bools,
    last: Bools,
    *,
    gamma: float,
    lambda_: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Generalized advantage estimates, and the targets of the value function that go with them.

    Source: Schulman et al. (2016), Eq. 11-16, arXiv:1506.02438:
        δ_t = r_t + γ V(s_{t+1}) - V(s_t),  A_t = Σ_l (γλ)^l δ_{t+l},  target_t = A_t + V(s_t)
        with V(s_{t+1}) = 0 where the episode terminated at t. A sum cut off by truncation or by the end of a fragment
        still has its bootstrap, inside the last δ.

    Args:
        rewards: [N] r_t.
        values: [N] V(s_t), of the observation acted on.
        next_values_at_last: [P] one per segment, in order: V of the real observation after its last row. Where that row
            terminated it is not read, and may be anything.
        terminateds: [N] true where the episode terminated (not where it was truncated).
        last: [N] true on the last row of each of the P segments.
        gamma: γ in [0, 1].
        lambda_: λ in [0, 1].
    Returns:
        [N] advantages and [N] value targets.
    Raises:
        ShapeError: columns of different lengths, or other than one next value for each segment.
        BatchError: the last row ends no segment, or an episode terminates inside a segment.
    """
    _check_rows(last, rewards=rewards, values=values, terminateds=terminateds)
    own = values.astype(np.float64)
    following = np.empty_like(own)
    following[:-1] = own[1:]
    following[last] = _bootstraps(next_values_at_last, terminateds, last)
    advantages = _suffix_sums(rewards + gamma * following - own, gamma * lambda_, last)
    return advantages.astype(np.float32), (advantages + own).astype(np.float32)


def discounted_returns(
    rewards: Floats, next_values_at_last: Floats | None, terminateds: Bools, last: Bools, *, gamma: float
) -> NDArray[np.float32]:
    """Discounted sums of the rewards to come, bootstrapped where a segment ends without termination.

    Source: Sutton and Barto (2018), "Reinforcement learning", Eq. 3.9:
        G_t = r_t + γ G_{t+1}, with V(s_{t+1}) for G_{t+1} on a segment's last row, or 0 where the episode terminated.

    Args:
        rewards: [N] r_t.
        next_values_at_last: [P] as in `generalized_advantages`; None for a policy without a value function, whose
            returns then leave out what comes after a cut.
        terminateds: [N] true where the episode terminated.
        last: [N] true on the last row of each segment.
        gamma: γ in [0, 1].
    Returns:
        [N] returns.
    Raises:
        ShapeError, BatchError: as `generalized_advantages`.
    """
    _check_rows(last, rewards=rewards, terminateds=terminateds)
    if next_values_at_last is None:
        next_values_at_last = np.zeros(np.count_nonzero(last))
    terms = rewards.astype(np.float64)
    terms[last] += gamma * _bootstraps(next_values_at_last, terminateds, last)
    return _suffix_sums(terms, gamma, last).astype(np.float32)


def _suffix_sums(x: NDArray, decay: ArrayLike, last: Bools) -> NDArray[np.float64]:
    sums = x.astype(np.float64)
    # carried[i] is the factor with which sums[i + shift] enters sums[i]. It is 0 as soon as a segment's end lies
    # between: segments never mix, and the last `shift` rows, which have nothing to look at, are finished.
    carried = np.where(last, 0.0, decay)
    shift, longest = 1, _longest_segment(last)
    while shift < longest:
        sums[:-shift] += carried[:-shift] * sums[shift:]
        carried[:-shift] *= carried[shift:]
        shift *= 2
    return sums


def _longest_segment(last: Bools) -> int:
    ends = np.flatnonzero(last)
    return int(np.diff(ends, prepend=-1).max(initial=0))


def _bootstraps(next_values_at_last: Floats, terminateds: Bools, last: Bools) -> NDArray[np.float64]:
    """[P] the value each segment goes on with: 0 where it terminated."""
    segments = int(np.count_nonzero(last))
    if np.shape(next_values_at_last) != (segments,):
        raise ShapeError(
            "The number of next values is not the number of trajectory segments.",
            where="next_values_at_last",
            got=np.shape(next_values_at_last),
            expected=(segments,),
            fix="give one value per segment, in order: that of the real observation after its last row",
        )
    ended = terminateds[last]
    if np.count_nonzero(ended) != np.count_nonzero(terminateds):
        raise BatchError(
            "An episode terminates inside a trajectory segment.",
            where=f"row {int(np.flatnonzero(terminateds & ~last)[0])}",
            expected="last to be true wherever terminateds is",
            fix="sort the rows by trajectory, in time order, and mark each one's last row",
        )
    return np.where(ended, 0.0, next_values_at_last)


def _check_rows(last: Bools, **columns: NDArray) -> None:
    for name, column in columns.items():
        if column.shape != last.shape:
            raise ShapeError("Columns of different lengths.", where=name, got=column.shape, expected=last.shape)
    if last.size and not last[-1]:
        raise BatchError(
            "The last row ends no trajectory segment.",
            where="last",
            expected="last[-1] to be true",
            fix="a segment that the fragment cuts off ends there: mark its last row, and give the value after it",
        )
