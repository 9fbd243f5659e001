"""Adds advantages to a fragment, from the values of a policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.errors import PolicyError
from rollax.ops.advantages import generalized_advantages
from rollax.policy.base_algorithm import Values


def add_advantages(
    fragment: Fragment,
    values: Values,
    *,
    gamma: float | Sequence[float],
    lambda_: float | Sequence[float],
    rewards: NDArray[np.floating] | None = None,
    episodic: bool | Sequence[bool] = True,
) -> Fragment:
    """Fills `advantages` and `value_targets` by generalized advantage estimation; see `generalized_advantages`.

    Args:
        fragment: rows with `obs`, `rewards`, `terminateds`, and `vf_preds` or `critic_obs`, and with `slot` if not all
            heads are episodic; the new columns are added to it.
        values: computes the value after each segment, and, if the fragment has `critic_obs`, the value of every row.
        gamma, lambda_, rewards, episodic: as for `generalized_advantages`.
    Raises:
        PolicyError: the fragment has `critic_obs` and a segment that does not terminate, but `after` has no
            `critic_obs`.
    """
    check_critic_obs(fragment)
    if SampleBatch.CRITIC_OBS in fragment:
        critic_obs = {SampleBatch.CRITIC_OBS: fragment[SampleBatch.CRITIC_OBS]}
        fragment[SampleBatch.VF_PREDS] = values(fragment[SampleBatch.OBS], critic_obs)
    read = np.flatnonzero(fragment.goes_on | (not np.all(episodic)))
    after = {name: trees.index(column, read) for name, column in fragment.after.items()}
    next_values = np.zeros((len(fragment.ends), *fragment[SampleBatch.VF_PREDS].shape[1:]), np.float32)
    next_values[read] = values(after.pop(SampleBatch.OBS), after)
    advantages, targets = generalized_advantages(
        fragment, next_values, gamma=gamma, lambda_=lambda_, rewards=rewards, episodic=episodic
    )
    fragment[SampleBatch.ADVANTAGES], fragment[SampleBatch.VALUE_TARGETS] = advantages, targets
    return fragment


def check_critic_obs(fragment: Fragment) -> None:
    """Raises PolicyError if `after` lacks `critic_obs` for a segment that does not terminate."""
    if SampleBatch.CRITIC_OBS not in fragment or SampleBatch.CRITIC_OBS in fragment.after:
        return
    if fragment.goes_on.any():
        raise PolicyError(
            "The next `critic_obs` of an unterminated trajectory is missing.",
            where="postprocess_trajectory",
            got=f"the column {SampleBatch.CRITIC_OBS!r} alone",
            expected=f"sample_batch.after[{SampleBatch.CRITIC_OBS!r}] beside it",
            fix="set after['critic_obs'] to one row: the `critic_obs` that follows the last row",
        )
