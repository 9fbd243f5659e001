"""A3C: asynchronous advantage actor-critic.

Source: Mnih et al. (2016), arXiv:1602.01783, algorithm S3: each worker computes the gradient of
    -log π(a|s) A + c_v (V(s) - R)² - c_e H(π(·|s))
on a short fragment of its own experience, and one optimizer applies the gradients as they arrive. Deviations: a loss is
the mean over a fragment's rows, not the sum; R and A are generalized advantage estimates (arXiv:1506.02438), as in the
paper with λ = 1; Adam instead of RMSProp. Advantages are not standardized.
"""

from __future__ import annotations

from typing import Any

import jax

from rollax.algorithms.trainer import Trainer
from rollax.batch import Fragment, SampleBatch
from rollax.config import TrainerConfig
from rollax.config.groups import CentralizedCriticFields, StateValueFields
from rollax.evaluation.advantages import add_advantages
from rollax.models.outputs import Outputs
from rollax.ops.masked import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.ops.values import explained_variance, value_loss
from rollax.optimizers.async_gradients import AsyncGradientsOptimizer
from rollax.policy.jax_policy import Columns, JaxPolicy


class A3CConfig(CentralizedCriticFields, StateValueFields, TrainerConfig):
    """The common fields, with the symbols of the equation above."""

    defaults = {"rollout_fragment_length": 10, "grad_clip": 0.5}
    requires = {"train_batch_size": {"rollout_fragment_length": "auto"}}


class A3CPolicy(JaxPolicy):
    """An actor and a critic, trained on advantages of whole fragments."""

    config_class = A3CConfig
    statistics = ("policy_loss", "vf_loss", "entropy", "vf_explained_var")
    batch_columns = frozenset(
        {SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.VF_PREDS},
    )

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        return add_advantages(self, fragment, gamma=self.config.gamma, lambda_=self.config.lambda_)

    def train_columns(self, batch: SampleBatch) -> dict[str, Any]:
        names = (SampleBatch.ADVANTAGES, SampleBatch.VALUE_TARGETS, SampleBatch.CRITIC_OBS)
        return {**super().train_columns(batch), **{name: batch[name] for name in names if name in batch}}

    def coefficients(self) -> dict[str, float]:
        return {**super().coefficients(), "entropy_coeff": self.scheduled("entropy_coeff")}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        policy_loss = policy_gradient_loss(logp, batch[SampleBatch.ADVANTAGES], mask)
        targets = batch[SampleBatch.VALUE_TARGETS]
        vf_loss = value_loss(out.value, targets, mask)
        entropy = masked_mean(self.distribution.entropy(out.policy), mask)
        loss = policy_loss + self.config.vf_loss_coeff * vf_loss - coefficients["entropy_coeff"] * entropy
        return loss, {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": entropy,
            "vf_explained_var": explained_variance(targets, out.value, mask),
        }

    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, Any], dict[str, Any]]:
        gradients, stats = super().compute_gradients(batch)
        return gradients, {**stats, "cur_lr": self.coefficients()["lr"]}


class A3CTrainer(Trainer):
    """Workers compute gradients; the driver applies each as it arrives."""

    name = "A3C"
    config_class = A3CConfig
    policy_class = A3CPolicy
    optimizer_class = AsyncGradientsOptimizer
