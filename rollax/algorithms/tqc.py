"""TQC: SAC with quantile critics, whose targets leave out the largest quantiles.

Source: Kuznetsov et al. (2020), arXiv:2005.04269: each of N critics has M quantiles θ of the return, τ_m = (m - ½) / M.
The N · M target quantiles of (s', a') are pooled, and the N · d largest are left out. The remaining z_i give the
targets y_i = r + γ (z_i - α log π(a'|s')). Critics minimize the mean of |τ_m - 1{y_i < θ_m}| huber(y_i - θ_m). The
actor maximizes the mean of all quantiles of (s, a). All else is as in SAC. Deviations: by default there are two critics
with the layers of SAC, as in sb3-contrib; the paper has five critics with three layers of 512 units.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from pydantic import Field

from rollax.algorithms.loss_terms import critic_statistics
from rollax.algorithms.sac import SAC, SACConfig, SACTrainer
from rollax.batch import Columns, SampleBatch
from rollax.errors import ConfigError
from rollax.models.actor_with_critics import make_critic, make_critics
from rollax.models.distributions.factory import check_continuous
from rollax.models.recurrent_critics import CRITIC_INPUTS, critic_inputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import lowest_quantiles, quantile_huber

_NEXT_NOISE = "next_noise"


class TQCConfig(SACConfig):
    """The fields of TQC, in addition to the fields of SAC."""

    defaults = {"num_critics": 2, "actor_q": "mean"}
    places = {("num_quantiles", "top_quantiles_to_drop_per_net"): ("policy",)}

    num_quantiles: int = Field(default=25, ge=1, description="M, number of quantiles of each critic")
    top_quantiles_to_drop_per_net: int = Field(
        default=2,
        ge=0,
        description="d, less than num_quantiles: targets leave out the N · d largest of all quantiles of N critics; a "
        "larger d lowers the values",
    )

    def check(self) -> None:
        super().check()
        if self.top_quantiles_to_drop_per_net >= self.num_quantiles:
            raise ConfigError(
                "No quantiles are left for the targets.",
                where="config keys 'top_quantiles_to_drop_per_net' and 'num_quantiles'",
                got=f"{self.top_quantiles_to_drop_per_net} of {self.num_quantiles}",
                expected="fewer dropped quantiles than each critic has",
                fix="lower top_quantiles_to_drop_per_net, or raise num_quantiles",
            )


class TQC(SAC):
    """A stochastic actor, quantile critics and a temperature, for continuous actions."""

    config_class = TQCConfig

    def check_spaces(self) -> None:
        check_continuous(self.action_space, f"action_space of {type(self).__name__}")
        super().check_spaces()

    def make_critics(self, rngs: nnx.Rngs) -> Any:
        config, arguments = self.config, (self.critic_space, self.action_space)
        one = partial(make_critic, *arguments, self.critic_layers, outputs=config.num_quantiles, rngs=rngs)
        return make_critics(self.num_critics, one)

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        outputs = self.next_outputs(model, batch).policy
        inputs = critic_inputs(self.next_outputs(target_model, batch), batch.get(SampleBatch.NEW_OBS))
        actions, logp = self.distribution.sample_and_logp(outputs, batch[_NEXT_NOISE])
        quantiles = self.chosen_critics(self.critics_of_targets(target_model)(inputs, actions), batch)
        lowest = lowest_quantiles(quantiles, self.config.top_quantiles_to_drop_per_net)
        soft = lowest - (jnp.exp(model.log_alpha[...]) * logp)[:, None]
        rewards, discounts = batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS]
        return {SampleBatch.TARGET: rewards[:, None] + discounts[:, None] * soft}

    def critic_loss(self, model: Any, batch: Columns, mask: jax.Array) -> tuple[jax.Array, dict]:
        inputs, target = batch.get(CRITIC_INPUTS, batch[SampleBatch.OBS]), batch[SampleBatch.TARGET]
        quantiles = model.critics(inputs, batch[SampleBatch.ACTIONS])
        losses = jax.vmap(quantile_huber, in_axes=(0, None))(quantiles, target).mean(axis=0)
        values, targets = lax.stop_gradient(quantiles).mean(axis=-1), target.mean(axis=-1)
        errors = jnp.abs(values - targets).mean(axis=0)
        loss = masked_mean(losses * batch[SampleBatch.WEIGHTS], mask)
        statistics = critic_statistics(values, targets, errors, mask)
        return loss, {**statistics, SampleBatch.TD_ERROR: self.errors_for_replay(errors, mask, batch)}

    def expected_values(self, outputs: jax.Array) -> jax.Array:
        return outputs.mean(axis=-1)


class TQCTrainer(SACTrainer):
    """TQC: SAC with quantile critics, whose targets leave out the largest quantiles.

    Source: Kuznetsov et al. (2020), arXiv:2005.04269. Its config is `TQCConfig`.
    """

    name = "TQC"
    config_class = TQCConfig
    policy_class = TQC
