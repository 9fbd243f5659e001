"""Advantages of actor-critic policies, with what their critic sees and what it says after each segment."""

from __future__ import annotations

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import PolicyError
from rollax.evaluation.postprocessing import generalized_advantages
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.policy import Segments


def add_advantages(
    policy: JaxPolicy, batch: SampleBatch, segments: Segments, *, gamma: float, lambda_: float
) -> SampleBatch:
    """Fills `advantages` and `value_targets` by generalized advantage estimation; see `generalized_advantages`.

    Args:
        policy: gives the values of what followed each segment, and of every row where `critic_obs` is in the batch.
        batch: rows with `obs`, `rewards`, `terminateds`, and `vf_preds` or `critic_obs`; it is changed.
        segments: where its trajectories end, and what came after.
        gamma: γ in [0, 1].
        lambda_: λ in [0, 1].
    Raises:
        PolicyError: a segment goes on, and there is nothing to tell its critic what follows.
    """
    goes_on = ~batch[SampleBatch.TERMINATEDS][segments.last]
    check_critic_obs(batch, segments, policy.name)
    if SampleBatch.CRITIC_OBS in batch:
        critic_obs = {SampleBatch.CRITIC_OBS: batch[SampleBatch.CRITIC_OBS]}
        batch[SampleBatch.VF_PREDS] = policy.compute_values(batch[SampleBatch.OBS], critic_obs)
    next_values = np.zeros(len(goes_on), np.float32)
    next_values[goes_on] = policy.compute_values(
        trees.index(segments.next_obs, np.flatnonzero(goes_on)),
        trees.index(segments.next_memory, np.flatnonzero(goes_on)),
    )
    batch[SampleBatch.ADVANTAGES], batch[SampleBatch.VALUE_TARGETS] = generalized_advantages(
        batch[SampleBatch.REWARDS],
        batch[SampleBatch.VF_PREDS],
        next_values,
        batch[SampleBatch.TERMINATEDS],
        segments.last,
        gamma=gamma,
        lambda_=lambda_,
    )
    return batch


def check_critic_obs(batch: SampleBatch, segments: Segments, policy_id: str) -> None:
    """Refuses rows with `critic_obs` where a segment goes on and nothing is given of what its critic sees then.

    Raises:
        PolicyError: so it is.
    """
    goes_on = ~batch[SampleBatch.TERMINATEDS][segments.last]
    if SampleBatch.CRITIC_OBS in batch and goes_on.any() and SampleBatch.CRITIC_OBS not in segments.next_memory:
        raise PolicyError(
            "A trajectory goes on, and there is nothing to tell its critic what follows.",
            where=f"policy {policy_id!r}, postprocess_trajectory",
            got=f"the column {SampleBatch.CRITIC_OBS!r} alone",
            expected=f"{SampleBatch.NEW_CRITIC_OBS!r} beside it",
            fix=f"fill {SampleBatch.NEW_CRITIC_OBS!r} too: what the critic sees after each row",
        )
