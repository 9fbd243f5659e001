"""DDPG: deep deterministic policy gradient; and TD3, which adds twin critics, delayed and smoothed updates.

Source: Lillicrap et al. (2016), arXiv:1509.02971: with y = r + γ Q⁻(s', π⁻(s')) the critic minimizes (Q(s, a) - y)² and
the actor -Q(s, π(s)); the targets Q⁻ and π⁻ are Polyak averages with coefficient τ. The improvements of TD3 (Fujimoto
et al. (2018), arXiv:1802.09477, Algorithm 1) are switches: the minimum of two critics, delayed updates of the actor,
noise on target actions. Deviations: actor and critics make their gradient steps at once, from the same weights, while
both papers update the critics first; no batch normalization and no weight decay; Ornstein-Uhlenbeck noise is scaled by
0.1 of half an action's range (RLlib: by 0.1 of the whole range); replay is uniform by default; the value after a time
limit is bootstrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from pydantic import Field

from rollax.algorithms.hindsight import Hindsight
from rollax.algorithms.loss_terms import critic_statistics
from rollax.algorithms.replay_learning import ReplayLearning
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, SampleBatch
from rollax.config.off_policy_groups import ActorCriticFields, RepeatedNoiseFields
from rollax.config.replay_groups import SequenceFields
from rollax.models.actor_with_critics import ActorWithCritics, frozen, make_actor, make_critic, make_critics
from rollax.models.config import ModelConfig
from rollax.models.distributions.factory import check_continuous
from rollax.models.outputs import Outputs
from rollax.models.recurrent_critics import CRITIC_INPUTS, critic_inputs, critic_space, join_actor_and_critics
from rollax.ops.actor_critic import smoothed_actions, td_target, twin_errors
from rollax.ops.mean_over_rows import masked_mean
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.base_algorithm import rates_by_part
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.action_noise import Deterministic, with_action_noise
from rollax.policy.exploration.parameter_noise import ParameterNoise, action_distance
from rollax.policy.size_checks import check_layers
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import UpdatePlan

_NOISE = "target_noise"


class DDPGConfig(SequenceFields, RepeatedNoiseFields, ActorCriticFields):
    """The fields of DDPG, in addition to the fields that all actor-critics share."""

    defaults = {
        "tau": 2e-3,
        "model": ModelConfig(fcnet_hiddens=(400, 300), fcnet_activation="relu"),
        "twin_q": False,
    }
    requires = {
        "parameter_noise": {"exploration": "ParameterNoise"},
        "longest_repeat": {"exploration": "GaussianNoise"},
        ("target_noise", "target_noise_clip"): {"smooth_target_policy": True},
    }
    places = {("policy_delay", "smooth_target_policy", "target_noise", "target_noise_clip"): ("policy",)}
    initial_values = {"parameter_noise": ("exploration",)}

    exploration: Literal["GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"] = Field(
        default="OrnsteinUhlenbeckNoise",
        description="noise on actions (OrnsteinUhlenbeckNoise, GaussianNoise), or on parameters (ParameterNoise), "
        "so that actions have the distance noise_scale from those without noise",
    )
    parameter_noise: float = Field(default=0.1, gt=0, description="initial σ of ParameterNoise; it adapts")
    policy_delay: int = Field(
        default=1,
        ge=1,
        lt=2**31,
        description="d, updates of the critics per update of the actor and the target networks",
    )
    smooth_target_policy: bool = Field(default=False, description="whether noise is added to target actions")
    target_noise: float = Field(
        default=0.2, ge=0, description="σ of the noise on target actions, in units of half an action's range"
    )
    target_noise_clip: float = Field(default=0.5, ge=0, description="c, bound on the noise on target actions")


class DDPG(Hindsight, ReplayLearning):
    """A deterministic actor with one or two critics."""

    config_class = DDPGConfig
    statistics = ("critic_loss", "actor_loss", "mean_q", "mean_target", "mean_td_error")

    def check_spaces(self) -> None:
        check_continuous(self.action_space, f"action_space of {type(self).__name__}")
        check_layers(self.config.model, type(self).__name__, memory=True)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        targets = polyak_average(config.tau, ("actor", "critics"), interval=config.policy_delay)
        return UpdatePlan(config.train_batch_size, updated_targets=targets, every={"actor": config.policy_delay})

    def noise_scale(self) -> Callable[[float], float]:
        """Returns timestep -> factor of the action noise."""
        return self.config.schedule("noise_scale")

    def make_exploration(self) -> Exploration:
        return self.exploration_with(self.noise_scale())

    def exploration_with(self, scale: Callable[[float], float]) -> Exploration:
        """Returns the exploration with noise of this scale, a function of the timestep."""
        config, greedy = self.config, Deterministic(self.action_space.shape or ())
        exploration = with_action_noise(greedy, self.action_space, config, scale)
        if config.exploration != "ParameterNoise":
            return exploration
        return ParameterNoise(exploration, action_distance, scale, config.parameter_noise)

    @property
    def critic_layers(self) -> ModelConfig:
        """The layers of the critics, by default the layers of the actor."""
        return self.config.model

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        spaces, sizes = (self.observation_space, self.action_space), self.critic_layers
        actor = make_actor(*spaces, self.exploration.num_inputs, self.config.model, rngs=rngs)
        one = partial(make_critic, critic_space(self.observation_space, sizes), self.action_space, sizes, rngs=rngs)
        critics = make_critics(2 if self.config.twin_q else 1, one)
        return join_actor_and_critics(*spaces, sizes, actor, critics, squashed=True, rngs=rngs)

    def learning_rates(self, lr: float) -> dict[str, float]:
        return rates_by_part(lr, actor=self.config.actor_lr, critics=self.config.critic_lr)

    def noise_columns(self, rows: int, rng: np.random.Generator) -> dict[str, Any]:
        if not self.config.smooth_target_policy:
            return {}
        return {_NOISE: rng.standard_normal((rows, *(self.action_space.shape or ())), np.float32)}

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        out = self.next_outputs(target_model, batch)
        batch = {**batch, CRITIC_INPUTS: critic_inputs(out, batch.get(SampleBatch.NEW_OBS))}
        next_values = self.next_values(target_model, self.next_actions(out, batch), batch)
        return {SampleBatch.TARGET: td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], next_values)}

    def next_actions(self, out: Outputs, batch: Columns) -> jax.Array:
        """Returns [B, ...], the next actions from the target policy's outputs, with noise if targets are smoothed."""
        config = self.config
        actions = self.exploration.mode(out.policy)
        if not config.smooth_target_policy:
            return actions
        limits = {"scale": config.target_noise, "limit": config.target_noise_clip}
        return smoothed_actions(actions, batch[_NOISE], **limits)

    def next_values(self, target_model: Any, actions: jax.Array, batch: Columns) -> jax.Array:
        """Returns [B], the values of the next actions; the batch has the `critic_inputs` of the next observations."""
        return target_model.critics(batch[CRITIC_INPUTS], actions).min(axis=0)

    def actor_loss(self, actions: jax.Array, values: jax.Array, batch: Columns, mask: jax.Array) -> jax.Array:
        """Returns [], the loss of the actor from its actions [B, ...] and their values [B]."""
        return -masked_mean(values, mask)

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        mask = self.learned_rows(batch, mask)
        inputs, target = critic_inputs(out, batch[SampleBatch.OBS]), batch[SampleBatch.TARGET]
        values = model.critics(inputs, batch[SampleBatch.ACTIONS])
        critic_loss, errors = twin_errors(values, target, batch[SampleBatch.WEIGHTS], mask)
        statistics = {"critic_loss": critic_loss, **critic_statistics(values, target, errors, mask)}
        statistics[SampleBatch.TD_ERROR] = self.errors_for_replay(errors, mask, batch)
        if "actor" not in coefficients["parts"]:
            return critic_loss, statistics
        actions = self.exploration.mode(out.policy)
        values = frozen(model.critics.member(0))(jax.lax.stop_gradient(inputs), actions)
        actor_loss = self.actor_loss(actions, values, batch, mask)
        return critic_loss + actor_loss, {**statistics, "actor_loss": actor_loss}


class DDPGTrainer(Trainer):
    """DDPG: deep deterministic policy gradient.

    Source: Lillicrap et al. (2016), arXiv:1509.02971. Its config is `DDPGConfig`.
    """

    name = "DDPG"
    config_class = DDPGConfig
    policy_class = DDPG
    optimizer_class = SyncReplayOptimizer


class TD3Config(DDPGConfig):
    """The fields of DDPG with the defaults of the paper's section 6.1 and of RLlib."""

    defaults = {
        "train_batch_size": 100,
        "buffer_size": 1_000_000,
        "learning_starts": 10_000,
        "random_steps": 10_000,
        "tau": 5e-3,
        "exploration": "GaussianNoise",
        "twin_q": True,
        "policy_delay": 2,
        "smooth_target_policy": True,
    }


class TD3(DDPG):
    """DDPG with other defaults."""

    config_class = TD3Config


class TD3Trainer(DDPGTrainer):
    """TD3: DDPG with twin critics, delayed actor updates, and target policy smoothing.

    Source: Fujimoto et al. (2018), arXiv:1802.09477. Its config is `TD3Config`.
    """

    name = "TD3"
    config_class = TD3Config
    policy_class = TD3
