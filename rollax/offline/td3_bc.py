"""TD3BC: TD3 whose actor stays near the recorded actions; with the switches of ReBRAC.

Source: Fujimoto and Gu (2021), arXiv:2106.06860, Eq. 3 and 5: the actor minimizes
    -λ mean Q_1(s, π(s)) + mean |π(s) - a|²,  λ = α / mean |Q_1(s, π(s))|,
where |·|² is the mean over the elements of an action, as in the authors' code; observations are standardized. The
switches of ReBRAC (Tarasov et al. (2023), arXiv:2305.09836, section 3) are layer normalization in the critics, deeper
networks (`model.fcnet_hiddens`), and a second penalty, in the targets of the critics,
    y = r + γ (min_i Q⁻_i(s', a') - β₂ Σ (a' - â')²),
with the recorded next action â' and the sum over the elements of an action. Deviations from ReBRAC: the actor maximizes
Q_1, as in TD3, not the minimum of both critics; and a row whose next action is unknown has no penalty: the last row
before a truncation, and in fresh experience the last row of each fragment.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from pydantic import Field

from rollax.algorithms.ddpg import TD3, TD3Config, TD3Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig
from rollax.ops.imitation import behaviour_regularized_loss, squared_distances
from rollax.policy.base_algorithm import Values

_NEW_ACTIONS, _ACTS_NEXT = "new_actions", "acts_next"


class TD3BCConfig(TD3Config):
    """The fields of TD3 and of the penalties."""

    defaults = {
        "lr": 3e-4,
        "train_batch_size": 256,
        "model": ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
        "observation_filter": "MeanStdFilter",
    }
    requires = {"critic_layer_norm": {"model.custom_model": None}}
    places = {("alpha", "critic_penalty", "critic_layer_norm"): ("policy",)}

    alpha: float = Field(
        default=2.5,
        ge=0,
        description="α, weight of the normalized value relative to the squared distance from the recorded action; 0: "
        "imitation only",
    )
    critic_penalty: float = Field(
        default=0.0, ge=0, description="β₂ of ReBRAC, weight of the squared distance from the recorded next action"
    )
    critic_layer_norm: bool = Field(
        default=False, description="whether layer normalization follows the hidden layers of the critics"
    )

    def check(self) -> None:
        super().check()
        if self.critic_penalty and self.n_step != 1:
            raise ConfigError(
                "The penalty compares the next action with the recorded action one step later.",
                where=f"config key 'n_step' ({type(self).__name__}), with critic_penalty",
                got=self.n_step,
                expected=1,
                fix="set n_step to 1, or critic_penalty to 0",
            )


class TD3BC(TD3):
    """TD3, whose actor stays near the recorded actions."""

    config_class = TD3BCConfig

    derives_from_settings = True
    """Whether the config alone determines the columns that `postprocess` of this class adds."""

    @property
    def critic_layers(self) -> ModelConfig:
        layers = super().critic_layers
        return layers.model_copy(update={"normalization": "layer"}) if self.config.critic_layer_norm else layers

    @property
    def replayed_columns(self) -> tuple[str, ...]:
        return (_NEW_ACTIONS, _ACTS_NEXT) if self.config.critic_penalty else ()

    def postprocess(self, fragment: Fragment, values: Values) -> SampleBatch:
        if self.config.critic_penalty:
            actions = np.asarray(fragment[SampleBatch.ACTIONS])
            fragment[_NEW_ACTIONS] = np.concatenate([actions[1:], actions[-1:]])
            fragment[_ACTS_NEXT] = (~fragment.last).astype(np.float32)
        return super().postprocess(fragment, values)

    def loss_columns(self, batch: SampleBatch, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().loss_columns(batch, rng), **{name: batch[name] for name in self.replayed_columns}}

    def next_values(self, target_model: Any, actions: jax.Array, batch: Columns) -> jax.Array:
        values = super().next_values(target_model, actions, batch)
        if not self.config.critic_penalty:
            return values
        distances = squared_distances(actions, batch[_NEW_ACTIONS]).sum(axis=1)
        return values - self.config.critic_penalty * batch[_ACTS_NEXT] * distances

    def actor_loss(self, actions: jax.Array, values: jax.Array, batch: Columns, mask: jax.Array) -> jax.Array:
        distances = squared_distances(actions, batch[SampleBatch.ACTIONS]).mean(axis=1)
        return behaviour_regularized_loss(values, distances, mask, alpha=self.config.alpha)


class TD3BCTrainer(TD3Trainer):
    """TD3BC: TD3 whose actor stays near the recorded actions.

    Source: Fujimoto and Gu (2021), arXiv:2106.06860. Its config is `TD3BCConfig`.
    """

    name = "TD3BC"
    config_class = TD3BCConfig
    policy_class = TD3BC
