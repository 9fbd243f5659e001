"""What the rows of a fragment are worth being learned from, as the policy that acted sees it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch


def add_priorities(
    batch: SampleBatch, td_errors: Callable[[SampleBatch], np.ndarray], *, n_step: int, gamma: float
) -> SampleBatch:
    """The batch with the column `priorities`: the errors with which a prioritized buffer begins.

    Source: Horgan et al. (2018), arXiv:1803.00933, Algorithm 1, line 10: the actors compute them, with the network that
        they act with. Deviations: a row whose n steps lead beyond the fragment has an error of as many steps as there
        are; the buffer draws it with all n.

    Args:
        batch: N rows with `bootstrap` rows after the segments that go on (see `add_bootstrap_rows`), whose own is 0.
        td_errors: the errors of transitions, as `JaxPolicy.td_errors`.
        n_step: n.
        gamma: γ.
    """
    rows, transitions = transitions_of(batch, n_step, gamma)
    priorities = np.zeros(batch.count, np.float32)
    if len(rows):
        priorities[rows] = np.abs(td_errors(transitions))
    batch[SampleBatch.PRIORITIES] = priorities
    return batch


def transitions_of(batch: SampleBatch, n_step: int, gamma: float) -> tuple[np.ndarray, SampleBatch]:
    """`(rows, transitions)`: which of the N rows are no bootstrap rows, and the transitions that begin with them.

    Source: as `Links.windows`: R_t = Σ_{k<n} γ^k r_{t+k}, and γ^n for the value of s_{t+n}; fewer steps where the
        segment ends before, and 0 in the place of γ^n where it terminates.

    Args:
        batch: as for `add_priorities`.
        n_step: n.
        gamma: γ.
    Returns:
        [M] positions; M rows with `rewards`, `new_obs`, `discounts` and `weights` as a buffer draws them.
    """
    observed, terminated = batch[SampleBatch.BOOTSTRAP], batch[SampleBatch.TERMINATEDS]
    rows = np.flatnonzero(~observed)
    at = rows.copy()
    returns, discounts = np.zeros(len(rows)), np.ones(len(rows))
    walking = np.arange(len(rows))
    for _ in range(n_step):
        places = at[walking]
        returns[walking] += discounts[walking] * batch[SampleBatch.REWARDS][places]
        ends = terminated[places]
        discounts[walking] *= np.where(ends, 0.0, gamma)
        at[walking] = np.where(ends, places, places + 1)  # what a segment goes on with stands right after it
        walking = walking[~ends & ~observed[at[walking]]]
    columns = {name: trees.index(column, rows) for name, column in batch.items()}
    columns[SampleBatch.REWARDS] = returns.astype(batch[SampleBatch.REWARDS].dtype)
    columns[SampleBatch.NEW_OBS] = trees.index(batch[SampleBatch.OBS], at)
    columns[SampleBatch.DISCOUNTS] = discounts.astype(np.float32)
    columns[SampleBatch.WEIGHTS] = np.ones(len(rows), np.float32)
    return rows, SampleBatch(columns)
