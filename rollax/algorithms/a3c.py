"""A3C: asynchronous advantage actor-critic; and A2C, its synchronous variant.

Source: Mnih et al. (2016), arXiv:1602.01783, algorithm S3: each worker computes the gradient of
    -log π(a|s) · A + c_v · (V(s) - R)² - c_e · H(π(·|s))
on a short fragment of its own experience, and one optimizer applies the gradients as they arrive. Deviations: a loss is
the mean over a fragment's rows, not the sum; A is the generalized advantage estimate (arXiv:1506.02438) and R is
A + V(s), both as in the paper if λ = 1; Adam instead of RMSProp. Advantages are not standardized.

In A2C all workers sample with the same weights, and their rows together give one gradient step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from pydantic import Field

from rollax.algorithms.exploration_bonus import BonusAdvantages
from rollax.algorithms.loss_terms import with_critic_and_entropy
from rollax.algorithms.normalized_rewards import NormalizedRewards
from rollax.algorithms.state_dependent_exploration import StateDependentExploration
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import TrainerConfig
from rollax.config.groups import (
    BonusAdvantageFields,
    CentralizedCriticFields,
    NormalizedRewardFields,
    StateDependentExplorationFields,
    StateValueFields,
)
from rollax.models.outputs import Outputs
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.ops.values import traced_advantages
from rollax.optimizers.async_gradients import AsyncGradientsOptimizer
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.base_algorithm import Values
from rollax.policy.update_plan import UpdatePlan

if TYPE_CHECKING:
    from rollax.policy.traced_columns import Steps


class A3CConfig(
    CentralizedCriticFields,
    BonusAdvantageFields,
    StateDependentExplorationFields,
    NormalizedRewardFields,
    StateValueFields,
    TrainerConfig,
):
    """The fields of A3C, in addition to the common fields."""

    defaults = {"rollout_fragment_length": 10, "timesteps_per_iteration": 1000, "grad_clip": 0.5}
    requires = {"train_batch_size": {"rollout_fragment_length": "auto"}}

    @property
    def _workers_of_a_batch(self) -> int:
        return 1  # an update learns from one worker's fragment


class A3C(NormalizedRewards, BonusAdvantages, StateDependentExploration):
    """An actor and a critic, whose advantages are estimated up to the end of each fragment."""

    config_class = A3CConfig
    statistics = ("policy_loss", "vf_loss", "entropy", "vf_explained_var")
    reads = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.ADVANTAGES, SampleBatch.VALUE_TARGETS)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        return self.add_advantages(fragment, values)

    def traced_columns(self, steps: Steps) -> Columns:
        advantages, targets = traced_advantages(*steps, gamma=self.config.gamma, lambda_=self.config.lambda_)
        return {SampleBatch.ADVANTAGES: advantages, SampleBatch.VALUE_TARGETS: targets}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        policy_loss = policy_gradient_loss(logp, batch[SampleBatch.ADVANTAGES], mask)
        targets = batch[SampleBatch.VALUE_TARGETS]
        loss, stats = with_critic_and_entropy(self, policy_loss, out, targets, mask, coefficients)
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)


class A3CTrainer(Trainer):
    """A3C: asynchronous advantage actor-critic, whose workers compute the gradients.

    Source: Mnih et al. (2016), arXiv:1602.01783. Its config is `A3CConfig`.
    """

    name = "A3C"
    config_class = A3CConfig
    policy_class = A3C
    optimizer_class = AsyncGradientsOptimizer


class A2CConfig(A3CConfig):
    """The fields of A3C, and `microbatch_size`."""

    defaults = {"rollout_fragment_length": 20, "timesteps_per_iteration": 0}
    requires = {"train_batch_size": {}}
    places = {"microbatch_size": ("policy",)}

    microbatch_size: int | None = Field(
        default=None,
        ge=1,
        description="rows on the device at once: the gradient of a batch is accumulated over parts of this size; None: "
        "the whole batch at once",
    )

    @property
    def _workers_of_a_batch(self) -> int:
        return max(self.num_workers, 1)  # one update learns from the fragments of all workers

    def check(self) -> None:
        super().check()
        if self.microbatch_size is not None:
            self.refuse_larger("microbatch_size", "train_batch_size")


class A2C(A3C):
    """As A3C, but the gradient of a batch may be accumulated over parts of `microbatch_size` rows."""

    config_class = A2CConfig

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(microbatch_size=self.config.microbatch_size)


class A2CTrainer(Trainer):
    """A2C: advantage actor-critic, the synchronous variant of A3C.

    Source: Mnih et al. (2016), arXiv:1602.01783. Its config is `A2CConfig`.
    """

    name = "A2C"
    config_class = A2CConfig
    policy_class = A2C
    optimizer_class = SyncSamplesOptimizer
