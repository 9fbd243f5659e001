"""A2C: advantage actor-critic, the synchronous variant of A3C.

Source: Mnih et al. (2016), arXiv:1602.01783, for the loss; see `rollax.algorithms.a3c`. All workers sample with the
same weights, and their rows together give one gradient step.
"""

from __future__ import annotations

from pydantic import Field

from rollax.algorithms.a3c import A3CConfig, A3CPolicy
from rollax.algorithms.trainer import Trainer
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.learner import UpdatePlan


class A2CConfig(A3CConfig):
    """The fields of A3C, and the size of the parts of a batch."""

    defaults = {"rollout_fragment_length": 20}
    requires = {"train_batch_size": {}}

    microbatch_size: int | None = Field(
        default=None,
        ge=1,
        description="rows on the device at once: the gradient of a batch is accumulated over parts of this size; None: "
        "the whole batch",
    )

    def check(self) -> None:
        super().check()
        if self.microbatch_size is not None:
            self.refuse_larger("microbatch_size", "train_batch_size")


class A2CPolicy(A3CPolicy):
    """The policy of A3C, which may learn from a batch in parts."""

    config_class = A2CConfig

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(microbatch_size=self.config.microbatch_size)


class A2CTrainer(Trainer):
    """Samples with the current policy, then makes one gradient step."""

    name = "A2C"
    config_class = A2CConfig
    policy_class = A2CPolicy
    optimizer_class = SyncSamplesOptimizer
