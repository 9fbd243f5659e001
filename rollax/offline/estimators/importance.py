"""Importance sampling: episodes of a behaviour policy, reweighted to a target policy. NumPy, float64.

Rows are flat: the steps of n episodes, one episode after another; `lengths` [n] are their numbers of steps. An episode
ends with its last row: rewards after a truncation are not part of its return.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

_LARGEST_LOG = 700.0  # larger logarithms of weights count as 700: exp(710) is infinite in float64
_CELLS_AT_ONCE = 1_000_000
_LOG_RANGE = 600.0  # if the logarithms of two weights differ by less, float64 can hold their ratio


@dataclass(frozen=True, eq=False)
class Terms:
    """An estimate as a sum over steps of weighted means over the n episodes: Σ_t Σ_i w_it y_it / Σ_i w_it.

    An episode that has ended keeps its last weight at later steps, with y = 0. A single mean is the case of one step
    per episode. Bootstrap and jackknife only reweight the episodes i. Memory grows with the number of rows N.

    Args:
        values: [N] y of each step.
        log_weights: [N] log w of each step; minus infinity for a weight of 0.
        lengths: [n] steps of each episode, at least 1.
    """

    values: Float[ndarray, "N"]
    log_weights: Float[ndarray, "N"]
    lengths: Int[ndarray, "n"]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def value(self) -> float:
        """The estimate; NaN if the weights of all episodes are 0 at some step, so that its mean is undefined."""
        return float(self.weighted(np.ones((1, len(self))))[0])

    def weighted(self, counts: Float[ndarray, "B n"]) -> Float[ndarray, "B"]:
        """The estimates with episode i counted `counts[b, i]` times, whole numbers; NaN where undefined."""
        return sum((_means(counts, *block).sum(axis=1) for block in self._blocks(len(counts))), np.zeros(len(counts)))

    def without_each(self, groups: Int[ndarray, "n"]) -> Float[ndarray, "G"]:
        """G estimates, each without the episodes of one group; NaN where undefined. Groups are numbered from 0."""
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        estimates = np.zeros(len(starts))
        for values, logs in self._blocks(1):
            top, steps = groups[logs.argmax(axis=0)], np.arange(logs.shape[1])
            weights = _weights(logs, logs.max(axis=0))
            above, below = (
                parts.sum(axis=0) - np.add.reduceat(parts[order], starts) for parts in (weights * values, weights)
            )
            means = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
            # Means without the largest weight are recomputed, because the difference may have no correct digits.
            others = np.where(groups[:, None] == top, -np.inf, logs)
            means[top, steps] = _means(np.ones((1, len(self))), values, others)[0]
            estimates += means.sum(axis=1)
        return estimates

    def _blocks(self, estimates: int) -> Iterator[tuple[Float[ndarray, "n K"], Float[ndarray, "n K"]]]:
        """y and log w of all episodes, K steps at a time; `estimates`: number of estimates that the caller computes."""
        starts, last = starts_of(self.lengths), (self.lengths - 1)[:, None]
        width = max(_CELLS_AT_ONCE // max(len(self), estimates), 1)
        for first in range(0, int(self.lengths.max()), width):
            steps = np.arange(first, min(first + width, int(self.lengths.max())))
            rows = starts[:, None] + np.minimum(steps, last)
            yield np.where(steps <= last, self.values[rows], 0.0), self.log_weights[rows]


def _means(
    counts: Float[ndarray, "B n"], values: Float[ndarray, "n K"], logs: Float[ndarray, "n K"]
) -> Float[ndarray, "B K"]:
    """Σ_i c_i w_i y_i / Σ_i c_i w_i of each step; NaN where all weights are 0.

    The ratio of two weights may exceed the range of float64. A common factor of all weights of a step cancels out, so
    the weights are divided by the largest weight. If a resample lacks all episodes whose weights are near the largest,
    its weights are divided by the largest of the remaining weights instead.
    """
    means, unknown = np.full((len(counts), logs.shape[1]), np.nan), True
    while np.isfinite(largest := logs.max(axis=0)).any():
        weights = _weights(logs, largest)
        below = counts @ weights
        found = unknown & (below > math.exp(-_LOG_RANGE))
        np.divide(counts @ (weights * values), below, out=means, where=found)
        unknown = np.isnan(means)
        if not unknown.any():
            break
        logs = np.where(logs > largest - _LOG_RANGE, -np.inf, logs)
    return means


def _weights(logs: Float[ndarray, "n K"], largest: Float[ndarray, "K"]) -> Float[ndarray, "n K"]:
    return np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))


def mean_of(values: Float[ndarray, "n"]) -> Terms:
    """The mean over episodes as terms."""
    return Terms(values, np.zeros(len(values)), np.ones(len(values), np.int64))


def starts_of(lengths: Int[ndarray, "n"]) -> Int[ndarray, "n"]:
    """The first row of each episode."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def steps_of(lengths: Int[ndarray, "n"]) -> Int[ndarray, "N"]:
    """t of each row: 0, 1, ... in each episode."""
    return np.arange(lengths.sum()) - np.repeat(starts_of(lengths), lengths)


def discounted_returns(rewards: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float) -> Float[ndarray, "n"]:
    """Σ_t γ^t r_t of each episode."""
    return np.add.reduceat(gamma ** steps_of(lengths) * rewards, starts_of(lengths))


def cumulative_log_weights(log_ratios: Float[ndarray, "N"], lengths: Int[ndarray, "n"]) -> Float[ndarray, "N"]:
    """log w_{0:t} = Σ_{k ≤ t} log(π(a_k | s_k) / μ(a_k | s_k)) at each row; -∞ from the first step with π = 0 on."""
    starts, sums = starts_of(lengths), np.empty_like(log_ratios)
    # One cumulative sum over all episodes would lose digits in the later episodes. The loop is short: the episodes of N
    # rows have at most sqrt(2 · N) different lengths.
    for length in np.unique(lengths):
        rows = starts[lengths == length][:, None] + np.arange(length)
        sums[rows] = np.cumsum(log_ratios[rows], axis=1)
    return sums


def importance_sampling(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """IS: the mean of w_{0:T-1} Σ_t γ^t r_t, unbiased, of high variance.

    Source: Precup, Sutton and Singh (2000), "Eligibility traces for off-policy policy evaluation".

    Args:
        rewards: [N] reward of each step.
        log_weights: [N] log w_{0:t} of each step.
        lengths: [n] steps of each episode, at least 1.
        gamma: γ in [0, 1].
    """
    last = np.cumsum(lengths) - 1
    return mean_of(_exp(log_weights[last]) * discounted_returns(rewards, lengths, gamma))


def per_decision(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """PDIS: the mean of Σ_t γ^t w_{0:t} r_t; a reward is not multiplied by the weights of later steps.

    Source and arguments: as `importance_sampling`.
    """
    return mean_of(discounted_returns(_exp(log_weights) * rewards, lengths, gamma))


def weighted(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """WIS: Σ_i w_i G_i / Σ_i w_i, biased for few episodes, consistent, and within the range of the observed returns.

    Undefined (NaN) if each episode has an action that the target policy never takes.

    Source and arguments: as `importance_sampling`.
    """
    last = np.cumsum(lengths) - 1
    return Terms(discounted_returns(rewards, lengths, gamma), log_weights[last], np.ones_like(lengths))


def weighted_per_decision(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """WPDIS: Σ_t γ^t Σ_i w^i_{0:t} r^i_t / Σ_i w^i_{0:t}.

    An episode that has ended keeps its last weight at later steps, with rewards of 0; otherwise the later rewards of
    longer episodes would count too much. Undefined (NaN) if each episode has an action that the target policy never
    takes.

    Source and arguments: as `importance_sampling`.
    """
    return Terms(gamma ** steps_of(lengths) * rewards, log_weights, lengths)


def doubly_robust(
    rewards: Float[ndarray, "N"],
    log_ratios: Float[ndarray, "N"],
    lengths: Int[ndarray, "n"],
    gamma: float,
    q: Float[ndarray, "N"],
    v: Float[ndarray, "N"],
    v_last: Float[ndarray, "n"],
) -> Terms:
    """DR: the mean of DR_0, with DR_t = V(s_t) + ρ_t (r_t + γ DR_{t+1} - Q(s_t, a_t)).

    Unbiased if the weights are right, and of low variance if Q is right. With Q = V = 0 it is PDIS.

    Source: Jiang and Li (2016), Eq. 10, arXiv:1511.03722. Deviation: an episode that does not terminate continues with
        V of its last observation.

    Args:
        rewards, lengths, gamma: as in `importance_sampling`.
        log_ratios: [N] log ρ_t = log π(a_t | s_t) - log μ(a_t | s_t), of single steps.
        q: [N] Q(s_t, a_t) of the logged actions.
        v: [N] V(s_t) = Σ_a π(a | s_t) Q(s_t, a).
        v_last: [n] DR_T: 0 where the episode terminates, else V of the last observation.
    """
    starts, ratios = starts_of(lengths), _exp(log_ratios)
    values = np.array(v_last, np.float64)
    for step in range(int(lengths.max()) - 1, -1, -1):
        alive = (lengths > step).nonzero()[0]
        rows = starts[alive] + step
        values[alive] = v[rows] + ratios[rows] * (rewards[rows] + gamma * values[alive] - q[rows])
    return mean_of(values)


def effective_sample_size(log_weights: Float[ndarray, "n"]) -> float:
    """(Σ w)² / Σ w²: the number of equally weighted episodes that would be as informative; n if weights are equal.

    Source: Kish (1965), "Survey sampling".
    """
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum())


def _exp(logs: Float[ndarray, "N"]) -> Float[ndarray, "N"]:
    return np.exp(np.minimum(logs, _LARGEST_LOG))
