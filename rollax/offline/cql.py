"""CQL: conservative Q-learning, SAC or DQN with lower values for actions that are not in the data.

Source: Kumar et al. (2020), arXiv:2006.04779, Eq. 4: the loss of the critics has the additional term
    w · mean(gap),  gap = log Σ_a exp Q(s, a) - Q(s, a_recorded).
Continuous actions (CQL, on SAC): the sum is estimated from actions of π(s), actions of π(s') and uniform actions, each
corrected by its density (appendix F). With `lagrangian` the weight adapts so that w · gap stays near a threshold
(Eq. 30). Discrete actions (DiscreteCQL, on double DQN): the sum is exact.

Deviations: the critics minimize ½ (Q - y)² + ½ w · gap, so that w = 5 means the same as in the authors' code, which
has neither factor ½; DiscreteCQL minimizes the loss of DQN + w · gap. Targets have no entropy by default, as in the
authors' code. The step size of the temperature is SAC's `lr`, by default three times the actor's; in the authors' code
the two are equal.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from pydantic import Field

from rollax.algorithms.dqn import DQN, DQNConfig, DQNTrainer
from rollax.algorithms.sac import SAC, SACConfig, SACTrainer
from rollax.batch import Columns, SampleBatch
from rollax.config.field_group import FieldGroup
from rollax.models.actor_with_critics import ActorWithCritics
from rollax.models.distributions.factory import check_continuous
from rollax.models.outputs import Outputs
from rollax.models.q_network import expected_values
from rollax.models.recurrent_critics import critic_inputs
from rollax.ops.actor_critic import td_target
from rollax.ops.conservative import discrete_gap, multiplier_loss, sampled_gap
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import chosen

_NOISE, _ACTIONS, _DENSITIES = "gap_noise", "gap_actions", "gap_log_densities"


class ConservativeFields(FieldGroup):
    """The weight of the term that conservative Q-learning adds to the loss of the critics."""

    places = {"min_q_weight": ("policy",)}

    min_q_weight: float = Field(
        default=5.0, ge=0, description="w, weight of the conservative term, which lowers the values of unseen actions"
    )


class CQLConfig(ConservativeFields, SACConfig):
    """The fields of SAC and of the conservative term."""

    defaults = {"actor_lr": 1e-4, "critic_lr": 3e-4}
    requires = {"lagrangian_thresh": {"lagrangian": True}}
    places = {("num_actions", "lagrangian", "lagrangian_thresh", "deterministic_backup"): ("policy",)}

    num_actions: int = Field(
        default=10, ge=1, description="number of actions per row from each of π(s), π(s') and the uniform distribution"
    )
    lagrangian: bool = Field(
        default=False,
        description="whether w is multiplied by an adaptive factor that keeps w times the gap near lagrangian_thresh",
    )
    lagrangian_thresh: float = Field(default=5.0, description="τ, the threshold of w times the gap")
    deterministic_backup: bool = Field(default=True, description="whether targets omit the entropy")


class CQL(SAC):
    """SAC with conservative critics, for continuous actions."""

    config_class = CQLConfig
    statistics = (*SAC.statistics, "conservative_gap", "conservative_weight")

    def check_spaces(self) -> None:
        check_continuous(self.action_space, f"action_space of {type(self).__name__}", discrete="DiscreteCQL")
        super().check_spaces()

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        model: Any = super().make_model(rngs)
        if self.config.lagrangian:
            model.log_multiplier = nnx.Param(jnp.asarray(np.float32(0)))
        return model

    def learning_rates(self, lr: float) -> dict[str, float]:
        rates = super().learning_rates(lr)
        return {**rates, "log_multiplier": rates["critics"]} if self.config.lagrangian else rates

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        shape = (len(batch), 3, self.config.num_actions, self.distribution.num_noise)
        return {**super().loss_columns(batch, rng), _NOISE: rng.random(shape, np.float32)}

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        columns = super().targets(model, target_model, batch, mask, coefficients)
        actions, densities = self._sampled(model, batch)
        columns |= {_ACTIONS: actions, _DENSITIES: densities}
        if self.config.deterministic_backup:
            following = self.next_values(model, target_model, batch)[0]
            columns[SampleBatch.TARGET] = td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], following)
        return columns

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        config, inputs = self.config, critic_inputs(out, batch[SampleBatch.OBS])
        loss, stats = super().loss(model, out, batch, mask, coefficients)
        sampled, densities = batch[_ACTIONS], batch[_DENSITIES]  # [B, S, ...], [B, S]
        critics = nnx.clone(model.critics)  # the model's own batch statistics cover recorded actions only
        # As rows: a vmap of the default critics over the samples takes 1.6 times as long.
        values = critics(inputs, sampled.reshape(-1, *sampled.shape[2:])).reshape(-1, *densities.shape)
        taken = critics(inputs, batch[SampleBatch.ACTIONS])
        gaps, mask = sampled_gap(values, densities, taken), self.learned_rows(batch, mask)
        gap, weight = masked_mean(gaps.mean(axis=0), mask), jnp.float32(config.min_q_weight)
        if config.lagrangian:
            factor, adapting = multiplier_loss(
                model.log_multiplier[...], weight * gap, threshold=config.lagrangian_thresh
            )
            weight, loss = weight * factor, loss + adapting
        conservative = 0.5 * weight * masked_mean(gaps.sum(axis=0), mask)
        return loss + conservative, {**stats, "conservative_gap": gap, "conservative_weight": weight}

    def _sampled(self, model: Any, batch: Columns) -> tuple[jax.Array, jax.Array]:
        """Returns [B, S, ...] actions of π(s) and π(s') and uniform actions, and [B, S] their log densities."""
        noise, draw = batch[_NOISE], jax.vmap(self.distribution.sample_and_logp, in_axes=(None, 1), out_axes=1)
        here, following = (
            draw(out.policy, noise[:, place])
            for place, out in enumerate((self.forward(model, batch), self.next_outputs(model, batch)))
        )
        uniform = (2 * noise[:, 2] - 1).reshape(here[0].shape)
        density = jnp.full_like(here[1], -math.log(2.0) * noise.shape[-1])
        parts = here, following, (uniform, density)
        actions, densities = (jnp.concatenate(columns, axis=1) for columns in zip(*parts, strict=True))
        return actions, densities


class CQLTrainer(SACTrainer):
    """CQL: conservative Q-learning of continuous actions.

    Source: Kumar et al. (2020), arXiv:2006.04779. Its config is `CQLConfig`.
    """

    name = "CQL"
    config_class = CQLConfig
    policy_class = CQL


class DiscreteCQLConfig(ConservativeFields, DQNConfig):
    """The fields of DQN, and the weight of the conservative term."""

    defaults = {"min_q_weight": 1.0}


class DiscreteCQL(DQN):
    """DQN with conservative values."""

    config_class = DiscreteCQLConfig
    statistics = (*DQN.statistics, "conservative_gap")

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        assert isinstance(self.action_space, spaces.Discrete)
        loss, stats = super().loss(model, out, batch, mask, coefficients)
        actions = jnp.asarray(batch[SampleBatch.ACTIONS]).astype(jnp.int32) - int(self.action_space.start)
        taken = chosen(expected_values(self._logits(out), self.support), actions)  # unmasked, as in the loss of DQN
        gap = masked_mean(discrete_gap(out.policy, taken), self.learned_rows(batch, mask))
        return loss + self.config.min_q_weight * gap, {**stats, "conservative_gap": gap}


class DiscreteCQLTrainer(DQNTrainer):
    """DiscreteCQL: conservative Q-learning of discrete actions.

    Source: Kumar et al. (2020), arXiv:2006.04779. Its config is `DiscreteCQLConfig`.
    """

    name = "DiscreteCQL"
    config_class = DiscreteCQLConfig
    policy_class = DiscreteCQL
