"""CrossQ: SAC with batch renormalization and without target networks.

Source: Bhatt et al. (2024), arXiv:1902.05605: critics and actor normalize their input and each hidden layer. Critics
see (s, a) and (s', a') in one batch, [q, q'] = Q([s, s'], [a, a']), so that batch statistics cover both halves, and
minimize ½ (q_i - y)² with y = r + γ (min_i q'_i - α log π(a'|s')), a constant. The actor that chooses a' is in
evaluation mode, and so are the critics in the loss of the actor. Actor and temperature change in every third gradient
step only, and Adam's β₁ is ½. All else is as in SAC. Deviations: the critics have layers of 1024 units, as in
sb3-contrib; the paper has 2048.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from pydantic import Field

from rollax.algorithms.sac import SAC, SACConfig, SACTrainer
from rollax.batch import Columns, SampleBatch
from rollax.config.replay_groups import OF_SEQUENCES
from rollax.errors import ConfigError
from rollax.models.actor_with_critics import ActorWithCritics, frozen, values_of_both
from rollax.models.config import CriticConfig, ModelConfig
from rollax.models.distributions.factory import check_continuous
from rollax.ops.actor_critic import td_target
from rollax.policy.gradient_transforms import adam, by_part
from rollax.policy.size_checks import check_layers
from rollax.policy.update_plan import UpdatePlan

_NEXT_NOISE = "next_noise"
_OF_BATCHES = ("batch", "batch_renorm")


class CrossQConfig(SACConfig):
    """The fields of CrossQ, in addition to the fields of SAC."""

    defaults = {
        "lr": 1e-3,
        "model": ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu", normalization="batch_renorm"),
        "critic_model": CriticConfig(fcnet_hiddens=(1024, 1024), normalization="batch_renorm"),
        "policy_delay": 3,
        "random_steps": 5000,
        "learning_starts": 5000,
    }
    requires = {
        "tau": "CrossQ has no target networks",
        OF_SEQUENCES: "CrossQ has no memory",
        "renorm_warmup_steps": [{f"{part}.normalization": "batch_renorm"} for part in ("model", "critic_model")],
    }
    places = {"renorm_warmup_steps": ("policy",)}

    renorm_warmup_steps: int = Field(
        default=100_000,
        ge=0,
        lt=2**31,
        description="number of initial calls in training for which a layer of batch renormalization is plain batch "
        "normalization",
    )

    def check(self) -> None:
        super().check()
        layers = self.critic_model or self.model
        if layers.normalization not in _OF_BATCHES and (self.critic_model or self.model.custom_model is None):
            raise ConfigError(
                "Without target networks, critics diverge if they do not normalize their batches.",
                where=f"config key '{layers.part}.normalization' ({type(self).__name__})",
                got=layers.normalization,
                expected=" or ".join(map(repr, _OF_BATCHES)),
                fix="set normalization in the same dict, which replaces the whole default dict; or use SAC",
            )


class CrossQ(SAC):
    """A stochastic actor, two critics without targets and a temperature, for continuous actions."""

    config_class = CrossQConfig

    def check_spaces(self) -> None:
        check_continuous(self.action_space, f"action_space of {type(self).__name__}")
        super().check_spaces()
        check_layers(self.config.model, type(self).__name__)

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        model = super().make_model(rngs)
        model.set_attributes(warm_up=self.config.renorm_warmup_steps, raise_if_not_found=False)
        return model

    def make_plan(self) -> UpdatePlan:
        return UpdatePlan(self.config.train_batch_size, every=self.delayed_parts)

    def make_optimizer(self) -> optax.GradientTransformation:
        return by_part(dict.fromkeys(self.learning_rates(0.0), adam(self.config, b1=0.5)), self.plan.every)

    def critic_loss(self, model: Any, batch: Columns, mask: jax.Array) -> tuple[jax.Array, dict]:
        outputs = self.forward(frozen(model), {SampleBatch.OBS: batch[SampleBatch.NEW_OBS]}).policy
        next_actions, logp = self.distribution.sample_and_logp(outputs, batch[_NEXT_NOISE])
        taken, following = values_of_both(model.critics, batch, next_actions)
        soft_values = self.reduce_targets(following, batch) - jnp.exp(model.log_alpha[...]) * logp
        targets = td_target(batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS], soft_values)
        return self.squared_errors(taken, targets, batch, mask)


class CrossQTrainer(SACTrainer):
    """CrossQ: SAC with batch renormalization and without target networks.

    Source: Bhatt et al. (2024), arXiv:1902.05605. Its config is `CrossQConfig`.
    """

    name = "CrossQ"
    config_class = CrossQConfig
    policy_class = CrossQ
