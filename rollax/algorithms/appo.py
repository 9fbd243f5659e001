"""APPO: asynchronous proximal policy optimization.

Source: Luo et al. (2020), IMPACT, arXiv:1912.00167: PPO's clipped surrogate (arXiv:1707.06347, Eq. 7) on V-trace
advantages, with a target policy π' between the behaviour policy μ and the trained policy π. V-trace corrects for
π'/μ, and the surrogate's ratio is π / max(π', μ/2), which is min(μ/π', 2) · π/μ. The target copies the weights of π
every `target_update_frequency` updates. Deviations: the online network estimates the values; an update is
`num_sgd_iter` gradient steps on one batch of fragments, which are fresh by default, while the paper draws them from a
circular buffer. The optional penalty is KL(π' || π).

With `vtrace=False` there is no target policy, as in PPO: the workers estimate advantages (arXiv:1506.02438), the ratio
is π/μ, and the optional penalty is KL(μ || π).
"""

from __future__ import annotations

from typing import Any

import jax
from pydantic import Field

from rollax.algorithms.impala import IMPALA, IMPALAConfig, IMPALATrainer, learned_rows
from rollax.algorithms.loss_terms import KLPenalty, with_critic_and_entropy
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import clipped_surrogate, truncated_reference
from rollax.policy.base_algorithm import Values
from rollax.policy.targets import periodic_copy
from rollax.policy.update_plan import UpdatePlan

_TARGET_LOGP, _TARGET_DIST_INPUTS = "target_logp", "target_dist_inputs"


class APPOConfig(IMPALAConfig):
    """The fields of APPO, in addition to the fields of IMPALA."""

    requires = {
        ("target_update_frequency", "vtrace_clip_pg_rho_threshold"): {"vtrace": True},
        ("kl_coeff", "kl_target"): {"use_kl_loss": True},
    }
    places = {
        (
            *("clip_param", "vtrace", "target_update_frequency"),
            *("use_kl_loss", "kl_coeff", "kl_target"),
        ): ("policy",),
    }
    initial_values = {"kl_coeff": ("use_kl_loss",)}

    clip_param: float = Field(default=0.4, ge=0, description="ε: the probability ratio is clipped to [1 - ε, 1 + ε]")
    vtrace: bool = Field(
        default=True,
        description="true: advantages of V-trace, computed by the learner; false: generalized advantage estimates, "
        "computed by the workers",
    )
    target_update_frequency: int = Field(
        default=1, ge=1, description="updates after which the target network becomes a copy of the online network"
    )
    use_kl_loss: bool = Field(
        default=False,
        description="whether a KL penalty is added to the loss; with vtrace the penalty is 0 unless num_sgd_iter or "
        "target_update_frequency is above 1, because the target network is otherwise a copy at each gradient step",
    )
    kl_coeff: float = Field(default=1.0, gt=0, description="initial weight of the KL penalty; it adapts to kl_target")
    kl_target: float = Field(default=0.01, gt=0, description="KL divergence that kl_coeff adapts to")


class APPO(KLPenalty, IMPALA):
    """An actor and a critic, trained on the clipped surrogate with a target network."""

    config_class = APPOConfig
    statistics = (*IMPALA.statistics, "kl", "cur_kl_coeff")

    @property
    def penalizes_kl(self) -> bool:
        return self.config.use_kl_loss

    @property
    def reads(self) -> tuple[str, ...]:
        if self.config.vtrace:
            return IMPALA.reads
        return (
            *(SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS),
            *(SampleBatch.ADVANTAGES, SampleBatch.VALUE_TARGETS),
        )

    def make_plan(self) -> UpdatePlan:
        config = self.config
        interval = config.target_update_frequency * config.num_sgd_iter
        return UpdatePlan(
            epochs=config.num_sgd_iter, updated_targets=periodic_copy(interval) if config.vtrace else None
        )

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        if self.config.vtrace:
            return super().postprocess(fragment, values)
        return self.add_advantages(fragment, values)

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        dist_inputs = self.forward(target_model, batch).policy
        logp = self.distribution.logp(dist_inputs, batch[SampleBatch.ACTIONS])
        return {_TARGET_LOGP: logp, _TARGET_DIST_INPUTS: dist_inputs}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        d = self.distribution
        logp = d.logp(out.policy, batch[SampleBatch.ACTIONS])
        if self.config.vtrace:
            targets, advantages = self.vtrace(batch[_TARGET_LOGP], out.value, batch, mask)
            reference = truncated_reference(batch[_TARGET_LOGP], batch[SampleBatch.ACTION_LOGP])
            old_dist_inputs = batch[_TARGET_DIST_INPUTS]
            mask = learned_rows(batch, mask)
        else:
            targets, advantages = batch[SampleBatch.VALUE_TARGETS], batch[SampleBatch.ADVANTAGES]
            reference, old_dist_inputs = batch[SampleBatch.ACTION_LOGP], batch[SampleBatch.ACTION_DIST_INPUTS]
        policy_loss = clipped_surrogate(logp, reference, advantages, mask, clip=self.config.clip_param)
        loss, stats = with_critic_and_entropy(self, policy_loss, out, targets, mask, coefficients)
        kl = masked_mean(d.kl(old_dist_inputs, out.policy), mask)
        if self.penalizes_kl:
            loss = loss + coefficients["kl_coeff"] * kl
        stats = {**stats, **self.ratio_statistics(logp, batch, mask), "kl": kl}
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)


class APPOTrainer(IMPALATrainer):
    """APPO: asynchronous proximal policy optimization.

    Source: Luo et al. (2020), IMPACT, arXiv:1912.00167. Its config is `APPOConfig`.
    """

    name = "APPO"
    config_class = APPOConfig
    policy_class = APPO
