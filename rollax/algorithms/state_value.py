"""Shared by algorithms with a state-value critic: value and entropy terms of the loss, an adaptive KL penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from gymnasium import Space

from rollax.batch import Columns, SampleBatch
from rollax.core.stored_values import read_number
from rollax.models.outputs import Outputs
from rollax.ops.masked import masked_mean
from rollax.ops.policy_gradient import adapted_kl_coeff
from rollax.ops.values import explained_variance, value_loss
from rollax.policy.jax_policy import JaxPolicy


def with_critic_and_entropy(
    policy: JaxPolicy,
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
    entropy = masked_mean(policy.distribution.entropy(out.policy), mask)
    loss = policy_loss + policy.config.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
    return loss, {
        "policy_loss": policy_loss,
        "vf_loss": vf_loss,
        "entropy": entropy,
        "vf_explained_var": explained_variance(targets, out.value, mask),
    }


class KLPenaltyPolicy(JaxPolicy):
    """A loss with the penalty `kl_coeff` · KL, whose weight adapts to `kl_target` after each train batch."""

    per_policy = frozenset({"kl_coeff"})  # a coefficient: it changes without recompilation

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.kl_coeff = self.config.kl_coeff

    @property
    def penalizes_kl(self) -> bool:
        return bool(self.config.kl_coeff)

    def coefficients(self) -> dict[str, Any]:
        return {**super().coefficients(), "kl_coeff": self.kl_coeff}

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        stats = super().learn_on_batch(batch)
        stats["cur_kl_coeff"] = self.kl_coeff if self.penalizes_kl else 0.0
        if self.penalizes_kl:
            self.kl_coeff = float(adapted_kl_coeff(self.kl_coeff, stats["kl"], target=self.config.kl_target))
        return stats

    def get_state(self) -> dict[str, Any]:
        # 0 never adapts: it means a run without the penalty.
        return {**super().get_state(), "kl_coeff": self.kl_coeff if self.penalizes_kl else 0.0}

    def set_state(self, state: Mapping[str, Any]) -> None:
        kl_coeff = read_number(state, "kl_coeff", f"policy {self.name!r}")
        super().set_state(state)
        self.kl_coeff = kl_coeff or self.config.kl_coeff
