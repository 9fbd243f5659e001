"""Advantage-weighted regression, an on-policy algorithm that is defined outside of the library."""

import jax
import jax.numpy as jnp
from pydantic import Field

from rollax import Algorithm, SyncSamplesOptimizer, Trainer, TrainerConfig
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.values import value_loss
from rollax.policy.add_advantages import add_advantages
from rollax.policy.update_plan import UpdatePlan


class AWRConfig(TrainerConfig):
    """Keys of advantage-weighted regression; symbols are those of Peng et al. (2019), arXiv:1910.00177."""

    train_batch_size: int = Field(default=1024, ge=1, description="steps of one iteration")
    beta: float = Field(default=0.5, gt=0, description="β, the temperature of the weights, in standard deviations")
    max_weight: float = Field(default=20.0, gt=0, description="ω_max, the largest weight of an action")


class AWR(Algorithm):
    """The actor imitates its own actions, weighted by exp(A / β). Actions of older policies are not reused."""

    config_class = AWRConfig
    reads = ("obs", "actions", "advantages", "value_targets")

    def make_plan(self):
        return UpdatePlan(minibatch_size=128, epochs=8)

    def postprocess(self, fragment, values):
        return add_advantages(fragment, values, gamma=self.config.gamma, lambda_=0.95)

    def loss_columns(self, batch, rng):
        scale = batch["advantages"].std() + 1e-6
        return {**super().loss_columns(batch, rng), "advantages": batch["advantages"] / scale}

    def loss(self, model, out, batch, mask, coefficients):
        weights = jnp.minimum(jnp.exp(batch["advantages"] / self.config.beta), self.config.max_weight)
        logp = self.distribution.logp(out.policy, batch["actions"])
        policy_loss = -masked_mean(jax.lax.stop_gradient(weights) * logp, mask)
        vf_loss = value_loss(out.value, batch["value_targets"], mask)
        return policy_loss + 0.5 * vf_loss, {"policy_loss": policy_loss, "vf_loss": vf_loss}


class AWRTrainer(Trainer):
    """Samples with the current policy, then learns in eight epochs of minibatches."""

    name, config_class, policy_class = "AWR", AWRConfig, AWR
    optimizer_class = SyncSamplesOptimizer
