"""MARWIL: imitation of recorded actions, weighted by their advantages; and BC, behaviour cloning, without weights.

Source: Wang et al. (2018), "Exponentially weighted imitation learning for batched historical data", NeurIPS 31:
    L = -mean exp(β Â / c) log π(a|s) + c_v ½ mean Â²,  Â = G - V(s),
where c² is a moving average of Â², and the weights are constants. G is the return up to the end of the trajectory,
bootstrapped if it was truncated. Deviations: returns are bootstrapped with the current weights. With memory,
sequences begin with a state of zeros, and returns are bootstrapped at the end of each sequence. `bc_logstd_coeff`
weights the entropy, which for Gaussians is the sum of log standard deviations up to a constant.

The defaults equal RLlib's. With these defaults, the moving average moves by 1 % in a million updates, so that c stays
at 10; `max_weight` limits the weights where returns are large.
"""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import Field

from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, SampleBatch
from rollax.config import ENABLED, NotIn
from rollax.config.groups import ValueLossFields
from rollax.config.replay_groups import BurnInFields, ReplayFields
from rollax.errors import NonFiniteError
from rollax.models.actor_with_critics import frozen
from rollax.models.outputs import Outputs
from rollax.offline.batch_replay import BatchReplayOptimizer
from rollax.offline.imitation_fields import WeightedImitationFields
from rollax.ops.actor_critic import td_target
from rollax.ops.imitation import advantage_weights, moving_mean_square
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.ops.values import explained_variance, value_loss
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.algorithm import Algorithm
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.recurrent_columns import RecurrentColumns
from rollax.policy.replayed import TRANSITION, Draw
from rollax.policy.sequence_draw import draw_for
from rollax.policy.update_plan import UpdatePlan

log = logging.getLogger("rollax.offline")
_LARGE = 25.0
_OF_SCALE = ("moving_average_sqd_adv_norm_start", "moving_average_sqd_adv_norm_update_rate")
_OF_WEIGHTS = ("vf_loss_coeff", "max_weight", *_OF_SCALE, "n_step", "model.vf_share_layers")
_REWARDS_SEEN = ({"model.lstm_use_prev_reward": True}, {"model.custom_model": ENABLED})
"""Settings of models that may read rewards."""

_OF_IMITATION = ("policy_loss", "entropy")
"""The statistics with `beta` 0."""


class MARWILConfig(BurnInFields, WeightedImitationFields, ValueLossFields, ReplayFields):
    """The fields of MARWIL, in addition to the fields of replay."""

    defaults = {"lr": 1e-4, "train_batch_size": 2000, "n_step": None, "vf_loss_coeff": 1.0}
    requires = {
        _OF_WEIGHTS: {"beta": NotIn(0)},
        "clip_rewards": [{"beta": NotIn(0)}, *_REWARDS_SEEN],
        "prioritized_replay": "rows are imitated with equal probability",
    }
    places = {("bc_logstd_coeff", *_OF_SCALE): ("policy",)}
    initial_values = {"moving_average_sqd_adv_norm_start": ()}

    bc_logstd_coeff: float = Field(
        default=0.0, ge=0, description="weight of an entropy bonus, which keeps standard deviations from shrinking to 0"
    )
    moving_average_sqd_adv_norm_start: float = Field(
        default=100.0,
        gt=0,
        description="initial value of c², the moving average of squared advantages, which scales advantages",
    )
    moving_average_sqd_adv_norm_update_rate: float = Field(
        default=1e-8, ge=0, le=1, description="weight of an update in the moving average of squared advantages"
    )


class MARWILPolicy(JaxPolicy):
    """Warns if the weights of a few actions outweigh all others, and names the settings that limit weights."""

    _warned = False

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        try:
            stats = super().learn_on_batch(batch)
        except NonFiniteError as error:
            where = error.parts["where"]
            # Bad rows or weights of the network make these statistics NaN or infinite too.
            others = "entropy" in where or "vf_loss" in where
            if "mean_weight" not in where or others or self.config.max_weight is not None:
                raise
            what = "Learning stopped before this step: the weights exp(β Â / c) are too large for float32."
            got = f"advantages far above c = {float(self.extra['mean_square']) ** 0.5:.3g}"
            raise NonFiniteError(what, where, got).expected(
                "β Â / c below 88",
                "set max_weight=100, lower beta, or raise moving_average_sqd_adv_norm_start to the mean squared return",
            ) from error
        if self.config.beta and self.config.max_weight is None and not self._warned:
            ratio = stats["mean_squared_advantage"] / stats["moving_average_sqd_adv_norm"]
            if ratio > _LARGE:
                self._warned = True
                log.warning(
                    "Policy %r: the mean squared advantage is %.0f times its moving average c², so a few actions have "
                    "nearly all of the weight exp(β Â / c). Set max_weight=100, lower beta, or set "
                    "moving_average_sqd_adv_norm_start to %.0f.",
                    *(self.name, ratio, stats["mean_squared_advantage"]),
                )
        return stats


class MARWIL(Algorithm):
    """An actor that imitates recorded actions, weighted by their advantages, and a critic for these advantages."""

    config_class = MARWILConfig
    policy_class = MARWILPolicy
    learns_off_policy = True
    reads = TRANSITION
    statistics = (
        *("policy_loss", "vf_loss", "entropy", "vf_explained_var"),
        *("mean_weight", "mean_squared_advantage", "moving_average_sqd_adv_norm"),
    )

    @property
    def reported(self) -> tuple[str, ...]:
        return self.statistics if self.config.beta else _OF_IMITATION

    @property
    def reads_values(self) -> bool:
        return bool(self.config.beta)

    def replayed(self, memory: RecurrentColumns) -> Draw:
        return draw_for(memory, self.config, stored_state=False)

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(self.config.train_batch_size)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        model = super().make_model(rngs)
        if self.config.beta:
            start = np.float32(self.config.moving_average_sqd_adv_norm_start)
            model.mean_square = nnx.Variable(jnp.asarray(start))  # c²: not trained, but part of the weights
        return model

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        if not self.config.beta:
            return {name: batch[name] for name in (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.WEIGHTS)}
        return super().loss_columns(batch, rng)

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        config = self.config
        importance = batch[SampleBatch.WEIGHTS]
        learned = mask * (importance > 0)  # neither burn-in rows nor bootstrap rows
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        entropy = self.distribution.entropy(out.policy)
        imitated = logp + config.bc_logstd_coeff * entropy if config.bc_logstd_coeff else logp
        if not config.beta:
            loss = policy_gradient_loss(imitated, importance, learned)
            return loss, {"policy_loss": loss, "entropy": masked_mean(entropy, learned)}
        targets = self._value_targets(model, out, batch)
        advantages = jnp.where(learned > 0, targets - jax.lax.stop_gradient(out.value), 0.0)
        rate = config.moving_average_sqd_adv_norm_update_rate
        square = moving_mean_square(model.mean_square[...], advantages, learned, rate=rate)
        model.mean_square[...] = square
        scaled = advantages / (jnp.sqrt(square) + 1e-8)
        weights = advantage_weights(scaled, beta=config.beta, max_weight=config.max_weight)
        policy_loss = policy_gradient_loss(imitated, importance * weights, learned)
        vf_loss = 0.5 * value_loss(out.value, targets, learned, weights=importance)
        return policy_loss + config.vf_loss_coeff * vf_loss, {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": masked_mean(entropy, learned),
            "vf_explained_var": explained_variance(targets, out.value, learned),
            "mean_weight": masked_mean(weights, learned),
            "mean_squared_advantage": masked_mean(advantages**2, learned),
            "moving_average_sqd_adv_norm": square,
        }

    def _value_targets(self, model: Any, out: Outputs, batch: Columns) -> jax.Array:
        """Returns [B] G, bootstrapped with the current values; constant."""
        if SampleBatch.TARGET_ROWS in batch:
            following = out.value[batch[SampleBatch.TARGET_ROWS]]
        else:
            constant = frozen(model)
            constant.eval()
            following = self.forward(constant, {SampleBatch.OBS: batch[SampleBatch.NEW_OBS]}).value
        return td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], following)


class MARWILTrainer(Trainer):
    """MARWIL: imitation of recorded actions, weighted by their advantages.

    Source: Wang et al. (2018), NeurIPS 31. Its config is `MARWILConfig`.
    """

    name = "MARWIL"
    config_class = MARWILConfig
    policy_class = MARWIL
    optimizer_class = SyncReplayOptimizer


class BCConfig(MARWILConfig):
    """The fields of MARWIL, except the fields of weights and values, which are refused."""

    defaults = {"beta": 0.0, "n_step": 1}
    requires = {
        "beta": "BC has no weights; MARWIL has",
        _OF_WEIGHTS: "BC learns no values; MARWIL does",
        "clip_rewards": _REWARDS_SEEN,
        "gamma": {"off_policy_estimation_methods": NotIn(())},  # BC itself learns no values
    }


class BC(MARWIL):
    """An actor that imitates recorded actions."""

    config_class = BCConfig
    statistics = _OF_IMITATION


class BCTrainer(MARWILTrainer):
    """BC: behaviour cloning, the maximum likelihood of recorded actions."""

    name = "BC"
    config_class = BCConfig
    statistics = _OF_IMITATION
    policy_class = BC
    optimizer_class = BatchReplayOptimizer  # BC cannot learn from its own actions
