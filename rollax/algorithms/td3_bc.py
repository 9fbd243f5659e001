"""TD3BC: TD3 whose actor stays near the recorded actions; and normalized critics.

Source: Fujimoto and Gu (2021), arXiv:2106.06860, Eq. 3 and 5: the actor minimizes
    -λ mean Q_1(s, π(s)) + mean |π(s) - a|²,  λ = α / mean |Q_1(s, π(s))|,
where |·|² is the mean over the elements of an action, as in the authors' code; observations are standardized. Of ReBRAC
(Tarasov et al. (2023), arXiv:2305.09836): layer normalization in the critics, and with `model.fcnet_hiddens` the depth.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from pydantic import Field

from rollax.algorithms.ddpg import TD3Config, TD3Policy, TD3Trainer
from rollax.batch import SampleBatch
from rollax.models.action_values import ActorWithCritics, make_actor, make_critics
from rollax.models.config import ModelConfig
from rollax.ops.imitation import behaviour_regularized_loss, squared_distances
from rollax.policy.jax_policy import Columns


class TD3BCConfig(TD3Config):
    """The fields of TD3, and those of the penalty."""

    defaults = {
        "lr": 3e-4,
        "train_batch_size": 256,
        "model": ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
        "observation_filter": "MeanStdFilter",
    }
    requires = {"critic_layer_norm": {"model.custom_model": None}}

    alpha: float = Field(
        default=2.5,
        ge=0,
        description="α, weight of the normalized value beside the squared distance from the recorded action; 0 only "
        "imitates",
    )
    critic_layer_norm: bool = Field(
        default=False, description="whether the critics' hidden layers are followed by layer normalization"
    )


class TD3BCPolicy(TD3Policy):
    """The policy of TD3, whose actor stays near the recorded actions."""

    config_class = TD3BCConfig

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        config, observations, actions = self.config, self.observation_space, self.action_space
        actor = make_actor(observations, actions, self.exploration.num_inputs, config.model, rngs=rngs)
        options: dict[str, Any] = {"layer_norm": config.critic_layer_norm, "rngs": rngs}
        critics = make_critics(observations, actions, 2 if config.twin_q else 1, config.model, **options)
        return ActorWithCritics(actor, critics, squashed=True)

    def actor_loss(self, actions: jax.Array, values: jax.Array, batch: Columns, mask: jax.Array) -> jax.Array:
        distances = squared_distances(actions, batch[SampleBatch.ACTIONS]).mean(axis=1)
        return behaviour_regularized_loss(values, distances, mask, alpha=self.config.alpha)


class TD3BCTrainer(TD3Trainer):
    """TD3BC: TD3 whose actor stays near the recorded actions."""

    name = "TD3BC"
    config_class = TD3BCConfig
    policy_class = TD3BCPolicy
