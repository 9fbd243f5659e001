"""PG: the plain policy gradient.

Source: Williams (1992), REINFORCE; Sutton and Barto (2018), section 13.3. Each action is weighted by the discounted
return that followed it. Returns are standardized over the train batch, which is the only baseline. Batches contain
whole episodes by default, because there is no value function to bootstrap a truncated one.
"""

from __future__ import annotations

from typing import Any

import jax

from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.batch.columns import check_batch
from rollax.config import TrainerConfig
from rollax.models.outputs import Outputs
from rollax.ops.advantages import discounted_returns, standardized
from rollax.ops.masked import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.jax_policy import JaxPolicy


class PGConfig(TrainerConfig):
    """The common fields, with the defaults of PG."""

    defaults = {"train_batch_size": 1000, "lr": 4e-3, "batch_mode": "complete_episodes"}
    requires = {"model.vf_share_layers": "there is no value function"}


class PGPolicy(JaxPolicy):
    """An actor trained on -log π(a|s) G."""

    config_class = PGConfig
    statistics = ("policy_loss", "entropy")
    batch_columns = frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS})

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        check_batch(fragment, Fragment, f"policy {self.name!r}, postprocessing")
        fragment[SampleBatch.ADVANTAGES] = discounted_returns(fragment, None, gamma=self.config.gamma)
        return fragment

    def train_columns(self, batch: SampleBatch) -> dict[str, Any]:
        returns = standardized(batch[SampleBatch.ADVANTAGES], batch.mask())
        return {**super().train_columns(batch), SampleBatch.ADVANTAGES: returns}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        loss = policy_gradient_loss(logp, batch[SampleBatch.ADVANTAGES], mask)
        return loss, {"policy_loss": loss, "entropy": masked_mean(self.distribution.entropy(out.policy), mask)}


class PGTrainer(Trainer):
    """PG: the plain policy gradient.

    Source: Williams (1992), REINFORCE. Its config is `PGConfig`.
    """

    name = "PG"
    config_class = PGConfig
    policy_class = PGPolicy
    optimizer_class = SyncSamplesOptimizer
