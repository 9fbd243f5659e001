"""IQL: implicit Q-learning, which never evaluates an action that is not in the data.

Source: Kostrikov et al. (2021), arXiv:2110.06169: with A = min_i Q⁻_i(s, a) - V(s), the state value minimizes the
expectile loss |τ - 1{A < 0}| A² (Eq. 5), the critics minimize (Q_i(s, a) - r - γ V(s'))² (Eq. 6), and the actor
minimizes -min(e^{β A}, 100) log π(a|s) (Eq. 7). Deviations: all three are updated at once, from the same weights,
whereas the authors update V first; n-step returns are optional; Discrete actions have a categorical actor. Continuous
actions have a Gaussian whose mean is the output of a tanh and whose standard deviations do not depend on the
observation, as in the authors' code, but log σ is at least -20 instead of -5. Fresh actions are clipped before they are
stored, as in the authors' code. The actor's step size does not decay.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from pydantic import Field

from rollax.algorithms.hindsight import Hindsight
from rollax.algorithms.loss_terms import critic_statistics
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config.field_group import NotIn
from rollax.config.off_policy_groups import ActorCriticFields
from rollax.models.actor_with_critics import (
    ActorWithCritics,
    GaussianActor,
    make_actor,
    make_critic,
    make_critics,
    make_state_value,
    values_of_actions,
)
from rollax.models.distributions.factory import check_box_or_discrete
from rollax.models.outputs import Outputs
from rollax.offline.imitation_fields import WeightedImitationFields
from rollax.ops.actor_critic import td_target, twin_errors
from rollax.ops.imitation import advantage_weights, expectile_loss
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.policy_gradient import policy_gradient_loss
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.base_algorithm import Values, rates_by_part
from rollax.policy.replayed import TRANSITION
from rollax.policy.size_checks import check_layers
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import UpdatePlan

_RECORDED = "recorded_value"
_OF_NOISE = ("noise_scale", "noise_scale_schedule", "ou_theta", "ou_sigma")


class IQLConfig(WeightedImitationFields, ActorCriticFields):
    """The fields of IQL, in addition to the fields that all actor-critics share."""

    defaults = {"lr": 3e-4, "buffer_size": 1_000_000, "random_steps": 0, "beta": 3.0, "max_weight": 100.0}
    requires = {
        ("lr", "lr_schedule"): [{name: None} for name in ("actor_lr", "critic_lr", "value_lr")],
        "max_weight": {"beta": NotIn(0)},
        (*_OF_NOISE, "random_steps"): "IQL explores by drawing actions from its policy",
    }
    places = {("value_lr", "expectile"): ("policy",)}

    value_lr: float | None = Field(default=None, ge=0, description="step size of the state value; None: lr")
    expectile: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="τ: with ½ the state value is that of the recorded policy, near 1 that of its best actions",
    )


class IQL(Hindsight):
    """A stochastic actor, two critics (one without `twin_q`) and a state value."""

    config_class = IQLConfig
    statistics = (
        *("critic_loss", "value_loss", "actor_loss", "entropy", "mean_weight"),
        *("mean_value", "mean_q", "mean_target", "mean_td_error"),
    )
    learns_off_policy = True
    reads = TRANSITION

    derives_from_settings = True
    """Whether the config alone determines the columns that `postprocess` of this class adds."""

    def check_spaces(self) -> None:
        check_box_or_discrete(self.action_space, f"action_space of {type(self).__name__}", composite="MARWIL")
        check_layers(self.config.model, type(self).__name__)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        return UpdatePlan(config.train_batch_size, updated_targets=polyak_average(config.tau, ("critics",)))

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        observations, actions, sizes = self.observation_space, self.action_space, self.config.model
        outputs = self.exploration.num_inputs
        if isinstance(actions, spaces.Box):
            means = make_actor(observations, actions, outputs // 2, sizes, rngs=rngs)
            actor: Any = GaussianActor(means, outputs // 2)
        else:
            actor = make_actor(observations, actions, outputs, sizes, rngs=rngs)
        one = partial(make_critic, observations, actions, sizes, rngs=rngs)
        critics = make_critics(2 if self.config.twin_q else 1, one)
        value = make_state_value(observations, actions, sizes, rngs=rngs)
        return ActorWithCritics(actor, critics, state_value=value)

    def learning_rates(self, lr: float) -> dict[str, float]:
        config = self.config
        return rates_by_part(lr, actor=config.actor_lr, critics=config.critic_lr, state_value=config.value_lr)

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        """The rows with clipped actions: the actions that the environment received, as in recorded data."""
        config, space = self.config, self.action_space
        if isinstance(space, spaces.Box) and (config.normalize_actions or config.clip_actions):
            low, high = (-1, 1) if config.normalize_actions else (space.low, space.high)
            actions = np.asarray(fragment[SampleBatch.ACTIONS])
            fragment[SampleBatch.ACTIONS] = np.clip(actions, low, high, dtype=actions.dtype)
        return super().postprocess(fragment, values)

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        following = model.state_value(batch[SampleBatch.NEW_OBS])
        recorded = self._values(target_model, batch).min(axis=0)
        target = td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], following)
        return {SampleBatch.TARGET: target, _RECORDED: recorded}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        config = self.config
        taken, values = self._values(model, batch), model.state_value(batch[SampleBatch.OBS])
        critic_loss, errors = twin_errors(taken, batch[SampleBatch.TARGET], batch[SampleBatch.WEIGHTS], mask)
        advantages = batch[_RECORDED] - values
        value_loss = expectile_loss(advantages, mask, expectile=config.expectile)
        weights = advantage_weights(advantages, beta=config.beta, max_weight=config.max_weight)
        logp = self.distribution.logp(out.policy, batch[SampleBatch.ACTIONS])
        actor_loss = policy_gradient_loss(logp, weights, mask)
        return critic_loss + value_loss + actor_loss, {
            "critic_loss": critic_loss,
            "value_loss": value_loss,
            "actor_loss": actor_loss,
            "entropy": masked_mean(self.distribution.entropy(out.policy), mask),
            "mean_weight": masked_mean(weights, mask),
            "mean_value": masked_mean(values, mask),
            **critic_statistics(taken, batch[SampleBatch.TARGET], errors, mask),
        }

    def _values(self, model: Any, batch: Columns) -> jax.Array:
        """Returns [N, B], the critics' values of the recorded actions."""
        return values_of_actions(
            model.critics, batch[SampleBatch.OBS], jnp.asarray(batch[SampleBatch.ACTIONS]), self.action_space
        )


class IQLTrainer(Trainer):
    """IQL: implicit Q-learning, from recorded actions only.

    Source: Kostrikov et al. (2021), arXiv:2110.06169. Its config is `IQLConfig`.
    """

    name = "IQL"
    config_class = IQLConfig
    policy_class = IQL
    optimizer_class = SyncReplayOptimizer
