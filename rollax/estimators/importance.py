"""Importance sampling: episodes of a behaviour policy, reweighted to a target policy. NumPy, float64.

Rows are flat: the steps of n episodes, one episode after another; `lengths` [n] are their numbers of steps. An episode
ends with its last row: rewards after a truncation are not part of its return.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

_LARGEST_LOG = 700.0  # exp of more is infinite in float64


@dataclass(frozen=True, eq=False)
class Terms:
    """An estimate as a sum of K ratios of sums over episodes: Σ_k Σ_i numerators[i, k] / Σ_i denominators[i, k].

    Bootstrap and jackknife need nothing else: they reweight the episodes i.
    """

    numerators: Float[ndarray, "n K"]
    denominators: Float[ndarray, "n K"]

    @property
    def value(self) -> float:
        """The estimate."""
        return float(self.weighted(np.ones((1, len(self.numerators))))[0])

    def weighted(self, counts: Float[ndarray, "B n"]) -> Float[ndarray, "B"]:
        """The estimates with episode i counted `counts[b, i]` times."""
        return self._ratios(counts @ self.numerators, counts @ self.denominators)

    def without_each(self) -> Float[ndarray, "n"]:
        """The n estimates without one episode each."""
        return self._ratios(
            self.numerators.sum(0) - self.numerators,
            self.denominators.sum(0) - self.denominators,
        )

    @staticmethod
    def _ratios(above: Float[ndarray, "B K"], below: Float[ndarray, "B K"]) -> Float[ndarray, "B"]:
        # Weights of 0 for all episodes of a resample: the ratio is undefined, and its term is 0.
        return np.divide(above, below, out=np.zeros_like(above), where=below > 0).sum(axis=1)


def mean_of(values: Float[ndarray, "n"]) -> Terms:
    """The mean over episodes as terms."""
    return Terms(values[:, None], np.ones((len(values), 1)))


def starts_of(lengths: Int[ndarray, "n"]) -> Int[ndarray, "n"]:
    """The first row of each episode."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def steps_of(lengths: Int[ndarray, "n"]) -> Int[ndarray, "N"]:
    """t of each row: 0, 1, ... in each episode."""
    return np.arange(lengths.sum()) - np.repeat(starts_of(lengths), lengths)


def discounted_returns(rewards: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float) -> Float[ndarray, "n"]:
    """Σ_t γ^t r_t of each episode."""
    return np.add.reduceat(gamma ** steps_of(lengths) * rewards, starts_of(lengths))


def cumulative_log_weights(
    target_logp: Float[ndarray, "N"], behaviour_logp: Float[ndarray, "N"], lengths: Int[ndarray, "n"]
) -> Float[ndarray, "N"]:
    """log w_{0:t} = Σ_{k ≤ t} log π(a_k | s_k) - log μ(a_k | s_k) at each row."""
    ratios = target_logp - behaviour_logp
    before = np.concatenate([[0.0], np.cumsum(ratios)])
    return before[1:] - np.repeat(before[starts_of(lengths)], lengths)


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
    last = starts_of(lengths) + lengths - 1
    return mean_of(_exp(log_weights[last]) * discounted_returns(rewards, lengths, gamma))


def per_decision(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """PDIS: the mean of Σ_t γ^t w_{0:t} r_t; a reward is not weighted by what came after it.

    Source and arguments: as `importance_sampling`.
    """
    return mean_of(discounted_returns(_exp(log_weights) * rewards, lengths, gamma))


def weighted(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """WIS: Σ_i w_i G_i / Σ_i w_i, biased for few episodes, consistent, and within the range of the observed returns.

    Source and arguments: as `importance_sampling`.
    """
    weights = log_weights[starts_of(lengths) + lengths - 1]
    weights = np.exp(weights - weights.max())  # a common factor cancels out
    return Terms((weights * discounted_returns(rewards, lengths, gamma))[:, None], weights[:, None])


def weighted_per_decision(
    rewards: Float[ndarray, "N"], log_weights: Float[ndarray, "N"], lengths: Int[ndarray, "n"], gamma: float
) -> Terms:
    """WPDIS: Σ_t γ^t Σ_i w^i_{0:t} r^i_t / Σ_i w^i_{0:t}.

    An episode that has ended keeps its last weight at later steps, with rewards of 0; without it the later rewards of
    longer episodes would count too much.

    Source and arguments: as `importance_sampling`.
    """
    longest, rows = int(lengths.max()), len(lengths)
    episode, step = np.repeat(np.arange(rows), lengths), steps_of(lengths)
    logs = np.repeat(log_weights[starts_of(lengths) + lengths - 1][:, None], longest, axis=1)
    logs[episode, step] = log_weights
    weights = np.exp(logs - logs.max(axis=0))
    earned = np.zeros((rows, longest))
    earned[episode, step] = gamma**step * rewards
    return Terms(weights * earned, weights)


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

    Unbiased if the weights are right, and of low variance if Q is. With Q = 0 it is PDIS.

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
