"""IMPALA: actor-critic learning from actions of older policies, corrected by V-trace.

Source: Espeholt et al. (2018), arXiv:1802.01561, section 4.2: with targets v and advantages A of V-trace, the loss is
    -log π(a|s) A + c_v (V(s) - v)² - c_e H(π(·|s)).
c_v = 1/2 gives the paper's value gradient (v - V) ∇V; c_v = 1/4 includes the paper's baseline cost of 1/2.
Deviations: a loss is the mean over the rows of a batch, not the sum; Adam by default, RMSProp with `opt_type`.

The observation after a segment that does not terminate is a row of the batch, and the learner computes its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from pydantic import Field

from rollax.algorithms.exploration_bonus import BONUSES, BonusAdvantages
from rollax.algorithms.loss_terms import with_critic_and_entropy
from rollax.algorithms.normalized_rewards import NormalizedRewards
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config.groups import BonusAdvantageFields, NormalizedRewardFields, StateValueFields
from rollax.config.off_policy_groups import AsyncSamplesFields
from rollax.core import trees
from rollax.errors import ConfigError
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.ops.vtrace import vtrace
from rollax.optimizers.async_samples import AsyncSamplesOptimizer
from rollax.policy.add_advantages import check_critic_obs
from rollax.policy.base_algorithm import Values
from rollax.policy.update_plan import UpdatePlan

_MAX_LOG_RHO = 60.0
_BONUS_DISCOUNTS = "bonus_discounts"


class IMPALAConfig(BonusAdvantageFields, NormalizedRewardFields, StateValueFields, AsyncSamplesFields):
    """The fields of IMPALA, in addition to the common fields."""

    defaults = {
        "train_batch_size": 500,
        "rollout_fragment_length": 50,
        "timesteps_per_iteration": 10_000,
        "lr": 5e-4,
        "grad_clip": 40.0,
    }
    requires = {("decay", "epsilon"): {"opt_type": "rmsprop"}, "adam_epsilon": {"opt_type": "adam"}}
    places = {
        (
            *("num_sgd_iter", "opt_type", "decay", "epsilon"),
            *("vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold"),
        ): ("policy",),
    }

    num_sgd_iter: int = Field(
        default=1, ge=1, description="K, gradient steps on each train batch; each uses the whole batch"
    )
    opt_type: Literal["adam", "rmsprop"] = Field(default="adam", description="the optimizer")
    decay: float = Field(default=0.99, ge=0, lt=1, description="decay of RMSProp's moving average of squared gradients")
    epsilon: float = Field(
        default=0.1, gt=0, description="ε of RMSProp, added to its moving average of squared gradients"
    )
    vtrace_clip_rho_threshold: float = Field(default=1.0, gt=0, description="ρ̄, the limit of ratios in the targets")
    vtrace_clip_pg_rho_threshold: float = Field(
        default=1.0, gt=0, description="upper bound of the ratios in the policy gradient"
    )

    def check(self) -> None:
        super().check()
        if self.replay_proportion and not self.replay_buffer_num_slots:
            raise ConfigError(
                "replay_proportion requires stored fragments, but none are kept.",
                "config keys 'replay_proportion' and 'replay_buffer_num_slots'",
                f"replay_proportion={self.replay_proportion}, replay_buffer_num_slots=0",
            ).expected("a positive number of slots", "raise replay_buffer_num_slots, or set replay_proportion to 0")


class IMPALA(NormalizedRewards, BonusAdvantages):
    """An actor and a critic, trained on V-trace targets."""

    config_class = IMPALAConfig
    statistics = ("policy_loss", "vf_loss", "entropy", "vf_explained_var", "mean_rho", "max_rho", "limited_rhos")
    reads = (
        SampleBatch.OBS,
        SampleBatch.ACTIONS,
        SampleBatch.REWARDS,
        SampleBatch.DISCOUNTS,
        SampleBatch.ACTION_LOGP,
        SampleBatch.BOOTSTRAP,
    )
    reads_values = True

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(epochs=self.config.num_sgd_iter)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        check_critic_obs(fragment)
        if self.gives_bonuses:
            fragment = self.by_slot(fragment)
        fragment[SampleBatch.DISCOUNTS] = fragment.discounts(self.config.gamma)
        return fragment.with_bootstrap_rows()

    def by_slot(self, fragment: Fragment) -> Fragment:
        """The fragment with the rows of each slot together, and with `bonus_discounts` for V-trace.

        V-trace takes the value after a row from the next row. After a termination this is the first row of the slot's
        next episode, so the discount is γ there too. The discount is 0 only where the slot's last row is a termination.
        """
        slots = fragment[SampleBatch.SLOT]
        rows = np.argsort(slots, kind="stable")
        segments = np.argsort(slots[fragment.starts], kind="stable")
        lengths = (fragment.ends + 1 - fragment.starts)[segments]
        columns = {name: trees.index(column, rows) for name, column in fragment.items()}
        after = {name: trees.index(column, segments) for name, column in fragment.after.items()}
        found = Fragment(columns, np.cumsum(lengths) - 1, after, env_steps=fragment.env_steps)
        slots = slots[rows]
        followed = np.append(slots[1:] == slots[:-1], False) | ~found[SampleBatch.TERMINATEDS]
        found[_BONUS_DISCOUNTS] = np.where(followed, self.bonus_gamma, 0.0).astype(np.float32)
        return found

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        of_bonuses = (BONUSES, _BONUS_DISCOUNTS) if _BONUS_DISCOUNTS in batch else ()
        return {**super().loss_columns(batch, rng), **{name: batch[name] for name in of_bonuses}}

    def make_optimizer(self) -> optax.GradientTransformation:
        if self.config.opt_type == "adam":
            return super().make_optimizer()
        # With `identity`, RMSProp is the second element of the chain, as in earlier checkpoints; see `adam`.
        return optax.chain(optax.identity(), optax.scale_by_rms(self.config.decay, self.config.epsilon))

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        targets, advantages = self.vtrace(logp, out.value, batch, mask)
        mask = learned_rows(batch, mask)
        policy_loss = policy_gradient_loss(logp, advantages, mask)
        loss, stats = with_critic_and_entropy(self, policy_loss, out, targets, mask, coefficients)
        stats = {**stats, **self.ratio_statistics(logp, batch, mask)}
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)

    def vtrace(
        self, logp: jax.Array, values: jax.Array, batch: Columns, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns targets and advantages [B] of the policy with log-probabilities `logp`; see `rollax.ops.vtrace`.

        With bonuses, values and targets are [B, 2], and advantages are A + `bonus_coeff` · A_b of the two heads.
        """
        config = self.config

        def of_head(rewards: jax.Array, discounts: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
            return vtrace(
                logp - batch[SampleBatch.ACTION_LOGP],
                discounts,
                rewards,
                values,
                batch[SampleBatch.BOOTSTRAP],
                mask,
                clip_rho_threshold=config.vtrace_clip_rho_threshold,
                clip_pg_rho_threshold=config.vtrace_clip_pg_rho_threshold,
                lambda_=config.lambda_,
            )

        rewards, discounts = batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS]
        if not self.gives_bonuses:
            return of_head(rewards, discounts, values)
        targets, advantages = of_head(rewards, discounts, values[:, 0])
        of_bonuses, bonus_advantages = of_head(batch[BONUSES], batch[_BONUS_DISCOUNTS], values[:, 1])
        return jnp.stack([targets, of_bonuses], axis=1), advantages + config.bonus_coeff * bonus_advantages

    def ratio_statistics(self, logp: jax.Array, batch: Columns, mask: jax.Array) -> dict[str, jax.Array]:
        """Returns mean and maximum of π/μ over the rows, and the share of rows that ρ̄ clips."""
        log_rhos = jnp.where(mask > 0, logp - batch[SampleBatch.ACTION_LOGP], 0.0)
        rhos = jnp.exp(jnp.minimum(log_rhos, _MAX_LOG_RHO))
        limited = (rhos > self.config.vtrace_clip_rho_threshold).astype(jnp.float32)
        return {
            "mean_rho": masked_mean(rhos, mask),
            "max_rho": jnp.where(mask > 0, rhos, 0.0).max(),
            "limited_rhos": masked_mean(limited, mask),
        }


def learned_rows(batch: Mapping[str, jax.Array], mask: jax.Array) -> jax.Array:
    """Returns [B], 1 for each row with a loss: neither padding nor a bootstrap row."""
    return jnp.where(batch[SampleBatch.BOOTSTRAP], 0.0, mask)


class IMPALATrainer(Trainer):
    """IMPALA: actor-critic learning from actions of older policies, corrected by V-trace.

    Source: Espeholt et al. (2018), arXiv:1802.01561. Its config is `IMPALAConfig`.
    """

    name = "IMPALA"
    config_class = IMPALAConfig
    policy_class = IMPALA
    optimizer_class = AsyncSamplesOptimizer
