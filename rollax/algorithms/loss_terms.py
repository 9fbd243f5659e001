"""What losses of several algorithms have in common: a critic, an entropy bonus, a KL penalty, and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from rollax.batch import Columns, SampleBatch
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import adapted_kl_coeff
from rollax.ops.values import explained_variance, value_loss
from rollax.policy.algorithm import Algorithm


def with_critic_and_entropy(
    algorithm: Algorithm,
    policy_loss: jax.Array,
    out: Outputs,
    targets: jax.Array,
    mask: jax.Array,
    coefficients: Columns,
    *,
    vf_clip_param: float | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns `(loss, statistics)`: policy loss, value loss and entropy bonus, weighted as in `StateValueFields`."""
    vf_loss = value_loss(out.value, targets, mask, vf_clip_param=vf_clip_param)
    entropy = masked_mean(algorithm.distribution.entropy(out.policy), mask)
    loss = policy_loss + algorithm.config.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
    return loss, {
        "policy_loss": policy_loss,
        "vf_loss": vf_loss,
        "entropy": entropy,
        "vf_explained_var": explained_variance(targets, out.value, mask),
    }


def critic_statistics(
    values: jax.Array, targets: jax.Array, errors: jax.Array, mask: jax.Array
) -> dict[str, jax.Array]:
    """The statistics of N critics, from values [N, B], targets [B] and mean absolute errors [B], all constant."""
    return {
        "mean_q": masked_mean(values.mean(axis=0), mask),
        "mean_target": masked_mean(targets, mask),
        "mean_td_error": masked_mean(errors, mask),
        SampleBatch.TD_ERROR: errors,
    }


class KLPenalty(Algorithm):
    """A loss with the penalty `kl_coeff` · KL, whose weight adapts to `kl_target` after each train batch."""

    @property
    def penalizes_kl(self) -> bool:
        return bool(self.config.kl_coeff)

    def first_numbers(self) -> dict[str, float]:
        return {"kl_coeff": self.config.kl_coeff} if self.penalizes_kl else {}

    def after_update(
        self, numbers: Mapping[str, float], statistics: dict[str, Any]
    ) -> tuple[Mapping[str, float], dict[str, Any]]:
        if not self.penalizes_kl:
            return numbers, {**statistics, "cur_kl_coeff": 0.0}
        # 0: checkpoints of earlier versions have it from runs without a penalty.
        weight = numbers["kl_coeff"] or self.config.kl_coeff
        following = float(adapted_kl_coeff(weight, statistics["kl"], target=self.config.kl_target))
        return {"kl_coeff": following}, {**statistics, "cur_kl_coeff": weight}
