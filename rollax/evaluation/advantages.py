"""Advantages of actor-critic policies, with what their critic sees and its values after each segment."""

from __future__ import annotations

import numpy as np

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import PolicyError
from rollax.evaluation.postprocessing import generalized_advantages
from rollax.policy.jax_policy import JaxPolicy


def add_advantages(policy: JaxPolicy, fragment: Fragment, *, gamma: float, lambda_: float) -> Fragment:
    """Fills `advantages` and `value_targets` by generalized advantage estimation; see `generalized_advantages`.

    Args:
        policy: values what came after each segment, and every row where `critic_obs` is in the fragment.
        fragment: rows with `obs`, `rewards`, `terminateds`, and `vf_preds` or `critic_obs`; it is changed.
        gamma: γ in [0, 1].
        lambda_: λ in [0, 1].
    Raises:
        PolicyError: a segment goes on, and its critic's next observation is missing.
    """
    check_critic_obs(fragment, policy.name)
    if SampleBatch.CRITIC_OBS in fragment:
        critic_obs = {SampleBatch.CRITIC_OBS: fragment[SampleBatch.CRITIC_OBS]}
        fragment[SampleBatch.VF_PREDS] = policy.compute_values(fragment[SampleBatch.OBS], critic_obs)
    goes_on = np.flatnonzero(fragment.goes_on)
    after = {name: trees.index(column, goes_on) for name, column in fragment.after.items()}
    next_values = np.zeros(len(fragment.ends), np.float32)
    next_values[goes_on] = policy.compute_values(after.pop(SampleBatch.OBS), after)
    fragment[SampleBatch.ADVANTAGES], fragment[SampleBatch.VALUE_TARGETS] = generalized_advantages(
        fragment[SampleBatch.REWARDS],
        fragment[SampleBatch.VF_PREDS],
        next_values,
        fragment[SampleBatch.TERMINATEDS],
        fragment.last,
        gamma=gamma,
        lambda_=lambda_,
    )
    return fragment


def check_critic_obs(fragment: Fragment, policy_id: str) -> None:
    """Refuses a fragment with `critic_obs` whose segments go on without a next one.

    Raises:
        PolicyError: there is such a segment.
    """
    if SampleBatch.CRITIC_OBS not in fragment or SampleBatch.CRITIC_OBS in fragment.after:
        return
    if fragment.goes_on.any():
        raise PolicyError(
            "A trajectory goes on, and what its critic sees next is missing.",
            where=f"policy {policy_id!r}, postprocess_trajectory",
            got=f"the column {SampleBatch.CRITIC_OBS!r} alone",
            expected=f"sample_batch.after[{SampleBatch.CRITIC_OBS!r}] beside it",
            fix="fill that too, with one row: what the critic sees after the last row",
        )
