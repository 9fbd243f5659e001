"""PG: the plain policy gradient.

Source: Williams (1992), REINFORCE; Sutton and Barto (2018), section 13.3. Each action is weighted by the discounted
return that followed it. Returns are standardized over the train batch, which is the only baseline. Batches contain
whole episodes by default, because there is no value function to bootstrap an episode that the end of a fragment cuts.
Rewards after a time limit count as 0.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rollax.algorithms.exploration_bonus import ExplorationBonus
from rollax.algorithms.normalized_rewards import NormalizedRewards
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import TrainerConfig
from rollax.config.groups import ExplorationBonusFields, NormalizedRewardFields
from rollax.models.outputs import Outputs
from rollax.ops.advantages import discounted_returns, standardized
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.optimizers.sync_samples import SyncSamplesOptimizer
from rollax.policy.base_algorithm import Values


class PGConfig(ExplorationBonusFields, NormalizedRewardFields, TrainerConfig):
    """The common fields and the fields of exploration bonuses and normalized rewards, with the defaults of PG."""

    defaults = {"train_batch_size": 1000, "lr": 4e-3, "batch_mode": "complete_episodes"}
    requires = {"model.vf_share_layers": "there is no value function"}


class PG(NormalizedRewards, ExplorationBonus):
    """An actor trained on -log π(a|s) · G, with standardized returns G."""

    config_class = PGConfig
    statistics = ("policy_loss", "entropy")
    reads = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.ADVANTAGES)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        fragment[SampleBatch.ADVANTAGES] = discounted_returns(fragment, None, gamma=self.config.gamma)
        return fragment

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        returns = standardized(batch[SampleBatch.ADVANTAGES], batch.mask())
        return {**super().loss_columns(batch, rng), SampleBatch.ADVANTAGES: returns}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        loss = policy_gradient_loss(logp, batch[SampleBatch.ADVANTAGES], mask)
        stats = {"policy_loss": loss, "entropy": masked_mean(self.distribution.entropy(out.policy), mask)}
        return self.with_predictor_loss(loss, stats, model, batch, mask, coefficients)


class PGTrainer(Trainer):
    """PG: the plain policy gradient.

    Source: Williams (1992), REINFORCE. Its config is `PGConfig`.
    """

    name = "PG"
    config_class = PGConfig
    policy_class = PG
    optimizer_class = SyncSamplesOptimizer
