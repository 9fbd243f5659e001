"""Returns and advantages of all trajectory segments of a fragment at once, in NumPy.

Segments are not padded. A segment that was truncated, or cut by the end of the fragment, is bootstrapped: the value of
the observation that followed its last row stands for the later rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.errors import ShapeError
from rollax.ops import check_same_shape

Floats = NDArray[np.floating]


def generalized_advantages(
    fragment: Fragment,
    next_values: Floats,
    *,
    gamma: float | Sequence[float],
    lambda_: float | Sequence[float],
    rewards: Floats | None = None,
    episodic: bool | Sequence[bool] = True,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns generalized advantage estimates and the corresponding value targets.

    Source: Schulman et al. (2016), Eq. 11-16, arXiv:1506.02438:
        δ_t = r_t + γ V(s_{t+1}) - V(s_t),  A_t = Σ_l (γλ)^l δ_{t+l},  target_t = A_t + V(s_t)
        with V(s_{t+1}) = 0 where the episode terminated at t. If truncation or the end of the fragment cuts the sum,
        the last δ contains the value of the observation after the segment. If not `episodic` (Burda et al. 2018,
        section 2.3, arXiv:1810.12894), the sum continues in the next episode of the slot: its first state is s_{t+1}.

    Args:
        fragment: N rows in P segments, with `rewards`, `terminateds` and the values V(s_t) as `vf_preds`; also `slot`,
            unless all heads are episodic.
        next_values: [P] V of the observation after each segment; if episodic, unused where the segment terminated.
        gamma: γ in [0, 1].
        lambda_: λ in [0, 1].
        rewards: [N] rewards to use in place of the fragment's rewards.
        episodic: whether the end of an episode ends the sum.
    Returns:
        [N] advantages and [N] value targets. For H value heads `vf_preds`, `next_values`, `rewards` and the results
        have a further axis [..., H]; `gamma`, `lambda_` and `episodic` may have one entry for each head.
    Raises:
        ShapeError: `next_values` does not have one entry per segment, or the number of heads differs.
        BatchError: an episode terminates inside a segment (checked if episodic).
    """
    values: Floats = fragment[SampleBatch.VF_PREDS]
    rewarded: Floats = fragment[SampleBatch.REWARDS] if rewards is None else rewards
    heads = values.shape[1:]
    check_same_shape("generalized_advantages", vf_preds=values, rewards=rewarded)
    _check_next_values(fragment, next_values, heads)
    if not heads:
        return _advantages(fragment, values, next_values, rewarded, gamma, lambda_, episodic)
    settings = (np.broadcast_to(setting, heads) for setting in (gamma, lambda_, episodic))
    each = zip(values.T, next_values.T, rewarded.T, *settings, strict=True)
    advantages, targets = zip(*(_advantages(fragment, *head) for head in each), strict=True)
    return np.stack(advantages, axis=1), np.stack(targets, axis=1)


def _advantages(
    fragment: Fragment, values: Floats, next_values: Floats, rewards: Floats, gamma: Any, lambda_: Any, episodic: Any
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The results of `generalized_advantages` for one head."""
    order: Any = slice(None)
    if episodic:
        ends, bootstraps = fragment.ends, _bootstraps(fragment, next_values)
    else:
        order = np.argsort(fragment[SampleBatch.SLOT], kind="stable")
        slots = fragment[SampleBatch.SLOT][order]
        ends = np.flatnonzero(np.append(slots[1:] != slots[:-1], True))
        bootstraps = next_values[np.searchsorted(fragment.ends, order[ends])]
    values = values[order].astype(np.float64)
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[ends] = bootstraps
    advantages = np.empty_like(values)
    advantages[order] = sums = _suffix_sums(rewards[order] + gamma * following - values, gamma * lambda_, ends)
    targets = np.empty_like(values)
    targets[order] = sums + values
    return advantages.astype(np.float32), targets.astype(np.float32)


def discounted_returns(fragment: Fragment, next_values: Floats | None, *, gamma: float) -> NDArray[np.float32]:
    """Returns discounted sums of future rewards, bootstrapped where a segment ends without termination.

    Source: Sutton and Barto (2018), "Reinforcement learning", Eq. 3.9:
        G_t = r_t + γ G_{t+1}; on the last row of a segment, G_{t+1} is V(s_{t+1}), or 0 where the episode terminated.

    Args:
        fragment: N rows with `rewards` and `terminateds`.
        next_values: [P] as in `generalized_advantages`; None for a policy without a value function: the rewards after
            each segment then count as 0.
        gamma: γ in [0, 1].
    Returns:
        [N] returns.
    Raises:
        ShapeError, BatchError: as for `generalized_advantages`.
    """
    if next_values is None:
        next_values = np.zeros(len(fragment.ends))
    _check_next_values(fragment, next_values)
    terms = fragment[SampleBatch.REWARDS].astype(np.float64)
    terms[fragment.ends] += gamma * _bootstraps(fragment, next_values)
    return _suffix_sums(terms, gamma, fragment.ends).astype(np.float32)


def running_sums(rewards: Floats, before: Floats, *, gamma: float, ends: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns discounted sums of the rewards so far: R_t = γ R_{t-1} + r_t.

    Args:
        rewards: [N] rewards of P segments.
        before: [P] the sum before the first reward of each segment.
        gamma: γ in [0, 1].
        ends: [P] the position of each segment's last reward.
    Returns:
        [N] the sum after each reward.
    """
    starts = np.append(0, ends[:-1] + 1)
    terms = rewards.astype(np.float64)
    terms[starts] += gamma * before
    return _suffix_sums(terms[::-1], gamma, len(terms) - 1 - starts[::-1])[::-1]


def standardized(x: NDArray[np.floating], real: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
    """Returns [N] float32 numbers with mean 0 and standard deviation 1; zeros if all numbers are equal.

    Args:
        x: [N].
        real: [N] false for padding, which is left out of mean and standard deviation and becomes 0; None: no padding.
    """
    x = x.astype(np.float64)  # a float32 mean of equal numbers may differ from the numbers
    counted = x if real is None else x[real]
    scaled = ((x - counted.mean()) / (counted.std() + 1e-8)).astype(np.float32)
    return scaled if real is None else np.where(real, scaled, np.float32(0))


def _suffix_sums(terms: NDArray, decay: float, ends: NDArray[np.integer]) -> NDArray[np.float64]:
    """Returns discounted sums from each row to the end of its segment: y_i = x_i + c y_{i+1}; on the last row y = x.

    Source: Hillis and Steele (1986), "Data parallel algorithms", doi:10.1145/7902.7903: the recurrence is a scan with
        (y, c)_i ← (y_i + c_i y_{i+s}, c_i c_{i+s}) for s = 1, 2, 4, ...; it takes log2(longest segment) passes.

    """
    sums = terms.astype(np.float64)
    # carried[i] is the factor with which sums[i + shift] enters sums[i]. It is 0 if a segment ends between
    # the two rows. For the last `shift` rows there is no row i + shift: their sums are complete.
    carried = np.full(len(sums), decay, np.float64)
    carried[ends] = 0.0
    shift, longest = 1, int(np.diff(ends, prepend=-1).max(initial=0))
    while shift < longest:
        sums[:-shift] += carried[:-shift] * sums[shift:]
        carried[:-shift] *= carried[shift:]
        shift *= 2
    return sums


def _bootstraps(fragment: Fragment, next_values: Floats) -> Floats:
    """[P] the bootstrap value of each segment: 0 if it terminated."""
    return np.where(fragment.goes_on, next_values, 0.0)


def _check_next_values(fragment: Fragment, next_values: Floats, heads: tuple[int, ...] = ()) -> None:
    if np.shape(next_values) != (*fragment.ends.shape, *heads):
        raise ShapeError(
            "The next values do not fit the segments and value heads.", "next_values", np.shape(next_values)
        ).expected(
            (*fragment.ends.shape, *heads),
            "give the value of the observation after the last row of each segment, in order; with several value heads, "
            "one value for each head",
        )
