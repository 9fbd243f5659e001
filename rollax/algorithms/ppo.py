"""PPO: proximal policy optimization.

Source: Schulman et al. (2017), arXiv:1707.06347: the clipped surrogate (Eq. 7), with generalized advantage estimation
(arXiv:1506.02438). The adaptive KL penalty (Eq. 8) is added if `kl_coeff` is above 0 (default 0.2 in RLlib, 0 here).
Advantages are standardized over the train batch.

With `target_kl` an update stops early, as in Stable-Baselines3 (Raffin et al., 2021): at the first minibatch whose mean
divergence from the policy that acted is above 1.5 · target_kl, before its gradient step. Deviations: the divergence is
the exact KL(old || new) of the two distributions, not its estimate from the sampled actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from pydantic import Field

from rollax.algorithms.exploration_bonus import BonusAdvantages
from rollax.algorithms.loss_terms import KLPenalty, with_critic_and_entropy
from rollax.algorithms.normalized_rewards import NormalizedRewards
from rollax.algorithms.state_dependent_exploration import StateDependentExploration
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import ENABLED, SchedulePoints
from rollax.config.groups import (
    BonusAdvantageFields,
    CentralizedCriticFields,
    MinibatchFields,
    NormalizedRewardFields,
    StateDependentExplorationFields,
    StateValueFields,
)
from rollax.models.outputs import Outputs
from rollax.ops.advantages import standardized
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import clip_fraction, clipped_surrogate
from rollax.ops.values import traced_advantages, traced_standardized
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.base_algorithm import Values
from rollax.policy.update_plan import UpdatePlan

if TYPE_CHECKING:
    from rollax.policy.traced_columns import Steps

_KL_MARGIN = 1.5


class PPOConfig(
    CentralizedCriticFields,
    BonusAdvantageFields,
    StateDependentExplorationFields,
    NormalizedRewardFields,
    StateValueFields,
    MinibatchFields,
):
    """The fields of PPO, in addition to the common fields; symbols are from the paper."""

    defaults = {"train_batch_size": 2048, "lr": 3e-4, "grad_clip": 0.5, "lambda_": 0.95, "entropy_coeff": 0.0}
    requires = {"kl_target": {"kl_coeff": ENABLED}}
    places = {
        ("clip_param", "clip_param_schedule", "vf_clip_param", "kl_coeff", "kl_target", "target_kl"): ("policy",),
    }
    initial_values = {"kl_coeff": ()}

    clip_param: float = Field(default=0.2, ge=0, description="ε: the probability ratio is clipped to [1 - ε, 1 + ε]")
    clip_param_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, ε], ...], linear in between; replaces clip_param"
    )
    vf_clip_param: float | None = Field(
        default=None,
        gt=0,
        description="bound on each row's squared value error, in squared reward units (RLlib: 10); None: no bound",
    )
    kl_coeff: float = Field(
        default=0.0, ge=0, description="β, initial weight of the KL penalty; 0: no penalty (RLlib: 0.2)"
    )
    kl_target: float = Field(
        default=0.01, gt=0, description="d_targ, KL divergence that the adaptation of kl_coeff aims at"
    )
    target_kl: float | None = Field(
        default=None,
        gt=0,
        description="an update stops at the first minibatch whose mean KL divergence is above 1.5 · target_kl; None: "
        "it never stops early",
    )


class PPO(KLPenalty, NormalizedRewards, BonusAdvantages, StateDependentExploration):
    """An actor and a critic, trained on the clipped surrogate."""

    config_class = PPOConfig
    statistics = (
        *("policy_loss", "vf_loss", "kl", "clip_fraction", "entropy", "vf_explained_var"),
        *("cur_kl_coeff", "num_gradient_steps"),
    )
    reads = (
        SampleBatch.OBS,
        SampleBatch.ACTIONS,
        SampleBatch.ACTION_LOGP,
        SampleBatch.ACTION_DIST_INPUTS,
        SampleBatch.ADVANTAGES,
        SampleBatch.VALUE_TARGETS,
    )

    def make_plan(self) -> UpdatePlan:
        config, target = self.config, self.config.target_kl
        stops = None if target is None else lambda statistics: statistics["kl"] > _KL_MARGIN * target
        return UpdatePlan(config.sgd_minibatch_size, config.num_sgd_iter, stops=stops)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        return self.add_advantages(fragment, values)

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        advantages = standardized(batch[SampleBatch.ADVANTAGES], batch.mask())
        return {**super().loss_columns(batch, rng), SampleBatch.ADVANTAGES: advantages}

    def traced_columns(self, steps: Steps) -> Columns:
        advantages, targets = traced_advantages(*steps, gamma=self.config.gamma, lambda_=self.config.lambda_)
        return {SampleBatch.ADVANTAGES: traced_standardized(advantages), SampleBatch.VALUE_TARGETS: targets}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        d = self.distribution
        logp, old_logp = d.logp(out.policy, batch[SampleBatch.ACTIONS]), batch[SampleBatch.ACTION_LOGP]
        clip = coefficients["clip_param"]
        policy_loss = clipped_surrogate(logp, old_logp, batch[SampleBatch.ADVANTAGES], mask, clip=clip)
        targets = batch[SampleBatch.VALUE_TARGETS]
        loss, stats = with_critic_and_entropy(
            self, policy_loss, out, targets, mask, coefficients, vf_clip_param=self.config.vf_clip_param
        )
        kl = masked_mean(d.kl(batch[SampleBatch.ACTION_DIST_INPUTS], out.policy), mask)
        if self.penalizes_kl:
            loss = loss + coefficients["kl_coeff"] * kl
        stats = {**stats, "kl": kl, "clip_fraction": clip_fraction(logp, old_logp, mask, clip=clip)}
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)


class PPOTrainer(Trainer):
    """PPO: proximal policy optimization.

    Source: Schulman et al. (2017), arXiv:1707.06347. Its config is `PPOConfig`.
    """

    name = "PPO"
    config_class = PPOConfig
    policy_class = PPO
    optimizer_class = SyncSamplesOptimizer
