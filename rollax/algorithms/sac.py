"""SAC: soft actor-critic, which maximizes reward and entropy.

Source: Haarnoja et al. (2018), arXiv:1801.01290, with the temperature learned as in arXiv:1812.05905. With
y = r + γ (min_i Q⁻_i(s', a') - α log π(a'|s')) and a, a' sampled from π, the losses are
    critics: ½ (Q_i(s, a) - y)²,  actor: α log π(a|s) - min_i Q_i(s, a),  temperature: -log α (log π(a|s) + H̄).
Discrete actions: Christodoulou (2019), arXiv:1910.07207, with exact expectations over the actions. Several critics
(`num_critics`): Chen et al. (2021), "REDQ", arXiv:2101.05982: the minimum in targets is over `target_critics` random
critics, and the actor may maximize the mean of all. Dropout of critics: Hiraoka et al. (2022), "DroQ",
arXiv:2110.02034. With memory SAC learns from sequences, and actor and critics have separate encoders: Ni et al. (2022),
arXiv:2110.05038. Deviations: actor, critics and temperature make their gradient steps at once, from the same weights,
while Algorithm 1 of arXiv:1812.05905 updates the critics first; the value after a time limit is bootstrapped; the
target entropy of discrete actions is 0.98 of the maximum entropy over the valid actions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import Space, spaces
from pydantic import Field

from rollax.algorithms.hindsight import Hindsight
from rollax.algorithms.loss_terms import critic_statistics
from rollax.algorithms.replay_learning import ReplayLearning
from rollax.algorithms.state_dependent_exploration import StateDependentExploration
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, SampleBatch
from rollax.config import NotIn
from rollax.config.groups import StateDependentExplorationFields
from rollax.config.off_policy_groups import ActorCriticFields, RepeatedNoiseFields
from rollax.config.replay_groups import SequenceFields
from rollax.core.spaces import ACTION_MASK
from rollax.errors import ConfigError
from rollax.models.actor_with_critics import (
    ActorWithCritics,
    frozen,
    make_actor,
    make_critic,
    make_critics,
    values_of_actions,
)
from rollax.models.config import MOST_LAYERS, CriticConfig, LayersConfig
from rollax.models.distributions import MASKED_LOGIT, ActionDistribution
from rollax.models.distributions.factory import check_box_or_discrete
from rollax.models.outputs import Outputs
from rollax.models.recurrent_critics import CRITIC_INPUTS, critic_inputs, critic_space, join_actor_and_critics
from rollax.ops.actor_critic import td_target, temperature_loss, twin_errors
from rollax.ops.mean_over_rows import masked_mean
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.base_algorithm import rates_by_part
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.action_noise import with_action_noise
from rollax.policy.size_checks import check_layers, check_layers_fit
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import UpdatePlan

_NOISE, _NEXT_NOISE, _SUBSET = "noise", "next_noise", "critics_in_target"
_SHARE_OF_ENTROPY = 0.98
_MEAN_LIMIT = 2.0  # bound of the means in state-dependent exploration, as in Stable-Baselines3


class SACConfig(SequenceFields, StateDependentExplorationFields, RepeatedNoiseFields, ActorCriticFields):
    """The fields of SAC, in addition to the fields that all actor-critics share."""

    defaults = {"lr": 3e-4, "buffer_size": 1_000_000, "random_steps": 1500, "sde_log_std_init": -3.0}
    requires = {
        ("lr", "lr_schedule"): [{name: None} for name in ("actor_lr", "critic_lr", "alpha_lr")],
        "target_entropy": {"alpha_lr": NotIn(0)},
        "use_sde": {"longest_repeat": 1},
        "twin_q": {"num_critics": None},
        "target_critics": {"num_critics": NotIn(None)},
    }
    places = {
        ("alpha_lr", "initial_alpha", "target_entropy"): ("policy",),
        ("critic_model", "num_critics", "target_critics", "actor_q", "policy_delay"): ("policy",),
    }
    initial_values = {"initial_alpha": ()}

    alpha_lr: float | None = Field(
        default=None, ge=0, description="step size of the temperature α; None: lr; 0: α stays at initial_alpha"
    )
    initial_alpha: float = Field(default=1.0, gt=0, description="initial temperature α, the weight of the entropy")
    target_entropy: float | None = Field(
        default=None,
        description="H̄, the entropy that α adapts to; None: -k for k continuous action elements, 0.98 · log n for n "
        "valid discrete actions",
    )
    exploration: Literal["StochasticSampling", "GaussianNoise", "OrnsteinUhlenbeckNoise"] = Field(
        default="StochasticSampling",
        description="StochasticSampling samples from the policy; GaussianNoise and OrnsteinUhlenbeckNoise also add "
        "noise",
    )
    critic_model: CriticConfig | None = Field(
        default=None, description="layers of the critics, which may have dropout; None: the layers of model"
    )
    num_critics: int | None = Field(
        default=None, ge=1, le=MOST_LAYERS, description="N, number of critics; None: two with twin_q, otherwise one"
    )
    target_critics: int | None = Field(
        default=None,
        ge=1,
        description="M, number of critics, drawn at random for each update, whose values are in the targets; None: all",
    )
    actor_q: Literal["min", "mean"] = Field(
        default="min", description="whether the actor maximizes the lowest value of the critics, or their mean"
    )
    policy_delay: int = Field(
        default=1, ge=1, lt=2**31, description="updates of the critics per update of actor and temperature"
    )

    def check(self) -> None:
        super().check()
        if self.target_critics is not None and self.num_critics is not None:
            self.refuse_larger("target_critics", "num_critics")
        if self.critic_model is not None and self.critic_model.has_statistics and self.model.has_memory:
            raise ConfigError(
                "With memory, critics learn from padded sequences: padding would count in their statistics.",
                where=f"config keys 'critic_model.normalization' and 'critic_model.normalize_observations' "
                f"({type(self).__name__})",
                got=(self.critic_model.normalization, self.critic_model.normalize_observations),
                expected="None or 'layer', and False",
                fix="change them, or use a model without memory",
            )


class SAC(Hindsight, ReplayLearning, StateDependentExploration):
    """A stochastic actor, critics and a temperature, for continuous actions or one Discrete action."""

    config_class = SACConfig
    statistics = (
        "critic_loss",
        "actor_loss",
        "alpha_loss",
        "alpha",
        "entropy",
        "mean_q",
        "mean_target",
        "mean_td_error",
    )

    def check_spaces(self) -> None:
        check_box_or_discrete(self.action_space, f"action_space of {type(self).__name__}", composite="PPO")
        check_layers(self.config.model, type(self).__name__, memory=True)
        if self.config.critic_model is not None:
            widths = (*self.config.critic_model.fcnet_hiddens, 1)
            check_layers_fit(self.observation_space, widths, "observation_space and critic_model.fcnet_hiddens")

    @cached_property
    def distribution(self) -> ActionDistribution:
        return self.gaussian(squash=True)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        targets = polyak_average(config.tau, ("critics",))
        return UpdatePlan(config.train_batch_size, updated_targets=targets, every=self.delayed_parts)

    @property
    def delayed_parts(self) -> dict[str, int]:
        """Part of the model -> k, for parts that make only every k-th update; see `UpdatePlan.every`."""
        delay = self.config.policy_delay
        return {"actor": delay, "log_alpha": delay} if delay > 1 else {}

    def make_exploration(self) -> Exploration:
        if self.config.exploration != "StochasticSampling" and isinstance(self.action_space, spaces.Discrete):
            raise ConfigError(
                "The actions are not continuous, so no noise can be added to them.",
                where="config key 'exploration'",
                got=f"{self.config.exploration}, for {self.action_space}",
                expected="StochasticSampling",
                fix="leave exploration out for this action space",
            )
        scale = self.config.schedule("noise_scale")
        return with_action_noise(super().make_exploration(), self.action_space, self.config, scale)

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        spaces, sizes = (self.observation_space, self.action_space), self.config.model
        actor, critics = make_actor(*spaces, self.exploration.num_inputs, sizes, rngs=rngs), self.make_critics(rngs)
        if self.config.use_sde:
            actor.head = self.make_head(rngs, trains_features=True, mean_limit=_MEAN_LIMIT)
        alpha = self.config.initial_alpha
        return join_actor_and_critics(*spaces, sizes, actor, critics, initial_alpha=alpha, rngs=rngs)

    @property
    def critic_space(self) -> Space:
        """The space of the critics' inputs: observations, or with memory features of the rows so far."""
        return critic_space(self.observation_space, self.config.model)

    @property
    def num_critics(self) -> int:
        """N, the number of critics."""
        return self.config.num_critics or (2 if self.config.twin_q else 1)

    @property
    def critic_layers(self) -> LayersConfig:
        """The layers of the critics."""
        return self.config.critic_model or self.config.model

    def make_critics(self, rngs: nnx.Rngs) -> Any:
        """Returns the critics that the loss calls, by default `num_critics` of `make_critic`."""
        one = partial(make_critic, self.critic_space, self.action_space, self.critic_layers, rngs=rngs)
        return make_critics(self.num_critics, one)

    def learning_rates(self, lr: float) -> dict[str, float]:
        config = self.config
        return rates_by_part(lr, actor=config.actor_lr, critics=config.critic_lr, log_alpha=config.alpha_lr)

    def noise_columns(self, rows: int, rng: np.random.Generator) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        if isinstance(self.action_space, spaces.Box):
            for name in (_NOISE, _NEXT_NOISE):
                columns[name] = rng.random((rows, self.distribution.num_noise), np.float32)
        if self.config.target_critics is not None:
            order = rng.random((rows, self.num_critics), np.float32).argsort(axis=1)
            columns[_SUBSET] = order[:, : self.config.target_critics].astype(np.int32)
        return columns

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        values, logp = self.next_values(model, target_model, batch)
        soft_values = values - jnp.exp(model.log_alpha[...]) * logp
        return {SampleBatch.TARGET: td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], soft_values)}

    def next_values(self, model: Any, target_model: Any, batch: Columns) -> tuple[jax.Array, jax.Array]:
        """Returns [B] target values and [B] log-probabilities of the actor's next actions."""
        outputs = self.next_outputs(model, batch).policy
        inputs = critic_inputs(self.next_outputs(target_model, batch), batch.get(SampleBatch.NEW_OBS))
        reduce = partial(self.reduce_targets, batch=batch)
        critics = self.critics_of_targets(target_model)
        return self.policy_values(outputs, critics, inputs, batch.get(_NEXT_NOISE), reduce)

    def critics_of_targets(self, target_model: Any) -> Any:
        """Returns the target critics, in which dropout is active if the critics have dropout."""
        if isinstance(self.critic_layers, CriticConfig):
            target_model.critics.set_attributes(deterministic=False, raise_if_not_found=False)
        return target_model.critics

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        mask = self.learned_rows(batch, mask)
        batch = {**batch, CRITIC_INPUTS: critic_inputs(out, batch[SampleBatch.OBS])}
        critic_loss, statistics = self.critic_loss(model, batch, mask)
        statistics = {**statistics, "critic_loss": critic_loss, "alpha": jnp.exp(model.log_alpha[...])}
        if coefficients["parts"].isdisjoint(("actor", "log_alpha")):  # policy_delay skips both
            return critic_loss, statistics
        actor_loss, logp = self.actor_loss(model, out, batch, mask)
        alpha_loss = self.temperature_loss(model, logp, batch, mask)
        of_actor = {"actor_loss": actor_loss, "alpha_loss": alpha_loss, "entropy": -masked_mean(logp, mask)}
        return critic_loss + actor_loss + alpha_loss, {**statistics, **of_actor}

    def critic_loss(self, model: Any, batch: Columns, mask: jax.Array) -> tuple[jax.Array, dict]:
        """Returns [] the loss of the critics, by default `squared_errors`, and statistics of the critics.

        The critics read the column `critic_inputs`, [B, ...] of `critic_space`, or `obs` if the batch lacks the column.
        """
        inputs, actions = batch.get(CRITIC_INPUTS, batch[SampleBatch.OBS]), batch[SampleBatch.ACTIONS]
        taken = values_of_actions(model.critics, inputs, actions, self.action_space)
        return self.squared_errors(taken, batch[SampleBatch.TARGET], batch, mask)

    def squared_errors(
        self, values: jax.Array, targets: jax.Array, batch: Columns, mask: jax.Array
    ) -> tuple[jax.Array, dict]:
        """Returns [] Σ_i ½ (Q_i - y)² of values [N, B] and targets [B], averaged over the rows, and statistics."""
        squares, errors = twin_errors(values, targets, batch[SampleBatch.WEIGHTS], mask)
        statistics = critic_statistics(values, targets, errors, mask)
        return 0.5 * squares, {**statistics, SampleBatch.TD_ERROR: self.errors_for_replay(errors, mask, batch)}

    def actor_loss(self, model: Any, out: Outputs, batch: Columns, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns [] α log π(a|s) - Q(s, a), averaged over the rows, and [B] log π; only the actor has a gradient."""
        inputs = jax.lax.stop_gradient(critic_inputs(out, batch[SampleBatch.OBS]))
        reduce = self.reduce_critics if self.config.actor_q == "min" else partial(jnp.mean, axis=0)
        values, logp = self.policy_values(out.policy, frozen(model.critics), inputs, batch.get(_NOISE), reduce)
        alpha = jnp.exp(jax.lax.stop_gradient(model.log_alpha[...]))
        return masked_mean(alpha * logp - values, mask), logp

    def temperature_loss(self, model: Any, logp: jax.Array, batch: Columns, mask: jax.Array) -> jax.Array:
        """Returns [] -log α (log π + H̄), averaged over the rows; only the temperature has a gradient."""
        target_entropy = self.target_entropy(batch[SampleBatch.OBS], logp)
        return temperature_loss(model.log_alpha[...], logp, target_entropy, mask)

    def policy_values(
        self, outputs: jax.Array, critics: Any, inputs: Any, noise: Any, reduce: Callable[[jax.Array], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns [B] values and [B] log-probabilities of the actor's actions: of a sample, or expected if discrete.

        `reduce` computes the value of an action from the values of all critics, such as `reduce_critics`.
        """
        if isinstance(self.action_space, spaces.Box):
            actions, logp = self.distribution.sample_and_logp(outputs, noise)
            return reduce(self.expected_values(critics(inputs, actions))), logp
        # A custom model may mask by minus infinity: 0 · ∞ is NaN.
        log_probs = jax.nn.log_softmax(jnp.maximum(outputs, MASKED_LOGIT), axis=-1)
        probabilities = jnp.exp(log_probs)
        values = jnp.maximum(reduce(self.expected_values(critics(inputs))), MASKED_LOGIT)
        return (probabilities * values).sum(axis=-1), (probabilities * log_probs).sum(axis=-1)

    def expected_values(self, outputs: jax.Array) -> jax.Array:
        """Returns values [N, B] or [N, B, A] from the critics' outputs, by default the outputs themselves.

        An override is for critics with K outputs, [N, B, K] or [N, B, A, K], such as quantiles of the return.
        """
        return outputs

    def reduce_critics(self, values: jax.Array) -> jax.Array:
        """Returns [B] or [B, A], the minimum of the values [N, B] or [N, B, A] of N critics."""
        return values.min(axis=0)

    def reduce_targets(self, values: jax.Array, batch: Columns) -> jax.Array:
        """Returns `reduce_critics` of the critics whose values are in the targets of this update."""
        return self.reduce_critics(self.chosen_critics(values, batch))

    def chosen_critics(self, outputs: jax.Array, batch: Columns) -> jax.Array:
        """Returns [M, B, ...] the outputs [N, B, ...] of the critics that are in the targets of this update."""
        # Each row has its own random subset, because minibatches are rows; an update uses the subset of its first row.
        return outputs[batch[_SUBSET][0]] if _SUBSET in batch else outputs

    def target_entropy(self, obs: Any, logp: jax.Array) -> jax.Array:
        """Returns [B], the target entropy H̄ of each row."""
        if self.config.target_entropy is not None:
            return jnp.full_like(logp, self.config.target_entropy)
        if isinstance(self.action_space, spaces.Box):
            return jnp.full_like(logp, -float(np.prod(self.action_space.shape)))
        assert isinstance(self.action_space, spaces.Discrete)
        valid = jnp.full_like(logp, float(self.action_space.n))
        if self.masks.present:
            valid = (jnp.asarray(obs[ACTION_MASK]) > 0).sum(axis=-1).astype(logp.dtype)
        return _SHARE_OF_ENTROPY * jnp.log(valid)


class SACTrainer(Trainer):
    """SAC: soft actor-critic, which maximizes reward and entropy.

    Source: Haarnoja et al. (2018), arXiv:1801.01290. Its config is `SACConfig`.
    """

    name = "SAC"
    config_class = SACConfig
    policy_class = SAC
    optimizer_class = SyncReplayOptimizer
