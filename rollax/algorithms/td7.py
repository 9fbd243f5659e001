"""TD7: TD3 with embeddings of states and actions, prioritized replay, and bounded targets.

Source: Fujimoto et al. (2023), arXiv:2306.02451. An encoder learns z_s = f(s) and z_sa = g(z_s, a) from the next
observation alone, by the loss mean((z_sa - z_s')²) with a constant z_s'. Critics Q(s, a, z_sa, z_s) and the actor
π(s, z_s) read the embeddings of a copy of the encoder, which stays the same for 250 updates. The targets read the
embeddings of the previous copy. With π⁻ and Q⁻ copied at the same times as the encoder, and c(x) = clip(x, low, high)
with the lowest and the highest target up to the last copy,
    y = r + γ c(min_i Q⁻_i(s', π⁻(s') + noise)).
The critics minimize the Huber loss of δ_i = Q_i - y, the actor maximizes the mean of the critics, and the priority of a
row is max(1, max_i |δ_i|)^0.4 without importance weights ("LAP", Fujimoto et al., 2020, arXiv:2007.06049).
Deviations: the policy of evaluations is the current one, not the best of earlier ones (the paper's checkpoints); copies
of the encoder are one gradient step older than those of actor and critics; all networks make their gradient steps at
once; the encoder does not learn from steps that terminate the episode, because replay buffers have no observation after
them; rows without a priority get the highest of all so far.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from pydantic import Field

from rollax.algorithms.ddpg import TD3, TD3Config, TD3Trainer
from rollax.algorithms.loss_terms import critic_statistics
from rollax.batch import Columns, SampleBatch
from rollax.config.off_policy_groups import CopiedTargetFields
from rollax.config.replay_groups import OF_SEQUENCES
from rollax.models.actor_with_critics import frozen, make_critics
from rollax.models.config import ModelConfig, Width
from rollax.models.state_action_embeddings import (
    EmbeddingActionValue,
    EmbeddingActor,
    EmbeddingModel,
    StateActionEncoder,
)
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import huber
from rollax.policy.base_algorithm import rates_by_part
from rollax.policy.size_checks import check_layers
from rollax.policy.targets import periodic_copy
from rollax.policy.update_plan import UpdatePlan

_OWN = "TD7 has networks of its own"
_OF_LAYERS = (
    "custom_model",
    "normalization",
    "normalize_before_activation",
    "residual_blocks",
    "normalize_observations",
)


class TD7Config(CopiedTargetFields, TD3Config):
    """The fields of TD3 with the defaults of TD7, and its own."""

    defaults = {
        "lr": 3e-4,
        "train_batch_size": 256,
        "learning_starts": 25_000,
        "random_steps": 25_000,
        "target_network_update_freq": 250,
        "prioritized_replay": True,
        "prioritized_replay_alpha": 0.4,
        "prioritized_replay_beta": 0.0,
        "model": ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
    }
    requires = {
        "tau": "TD7 copies its target networks: see target_network_update_freq",
        "n_step": "an embedding predicts the next observation, so targets have only one reward",
        OF_SEQUENCES: "TD7 has no memory",
        tuple(f"model.{name}" for name in _OF_LAYERS): _OWN,
    }
    places = {("embedding_dim", "encoder_lr"): ("policy",)}

    model: ModelConfig = Field(
        default=ModelConfig(fcnet_hiddens=(256, 256), fcnet_activation="relu"),
        description="fcnet_hiddens are the hidden layers of actor, critics and encoder; fcnet_activation is the "
        "actor's activation, critics and encoder have ELU",
    )
    embedding_dim: Width = Field(
        default=256, description="width of the embeddings, and of the first layers of actor and critics"
    )
    encoder_lr: float | None = Field(default=None, ge=0, description="step size of the encoder; None: lr")


class TD7(TD3):
    """A deterministic actor, two critics, and the encoder of their embeddings."""

    config_class = TD7Config
    statistics = (*TD3.statistics, "encoder_loss")

    def check_spaces(self) -> None:
        super().check_spaces()
        check_layers(self.config.model, type(self).__name__)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        targets = periodic_copy(config.target_network_update_freq)
        return UpdatePlan(config.train_batch_size, updated_targets=targets, every={"actor": config.policy_delay})

    def make_model(self, rngs: nnx.Rngs) -> EmbeddingModel:
        space, sizes, width = self.observation_space, self.config.model, self.config.embedding_dim
        actor = EmbeddingActor(space, self.exploration.num_inputs, width, sizes, rngs=rngs)
        one = partial(EmbeddingActionValue, space, self.action_space, width, sizes, rngs=rngs)
        critics = make_critics(2 if self.config.twin_q else 1, one)
        return EmbeddingModel(actor, critics, StateActionEncoder(space, self.action_space, width, sizes, rngs=rngs))

    def learning_rates(self, lr: float) -> dict[str, float]:
        config = self.config
        return rates_by_part(lr, actor=config.actor_lr, q_networks=config.critic_lr, encoder=config.encoder_lr)

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        target_model.fixed_encoder = target_model.target_encoder
        return super().targets(model, target_model, batch, mask, coefficients)

    def next_values(self, target_model: Any, actions: jax.Array, batch: Columns) -> jax.Array:
        low, high = target_model.bounds[...]
        return jnp.clip(super().next_values(target_model, actions, batch), low, high)

    def loss(
        self, model: Any, out: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        obs, taken, target = batch[SampleBatch.OBS], batch[SampleBatch.ACTIONS], batch[SampleBatch.TARGET]
        values = model.critics(obs, taken)
        errors = values - target
        critic_loss = masked_mean(huber(errors).sum(axis=0) * batch[SampleBatch.WEIGHTS], mask)
        encoder_loss = self.encoder_loss(model.encoder, batch, mask)
        sizes = lax.stop_gradient(jnp.abs(errors))
        statistics = {
            "critic_loss": critic_loss,
            "encoder_loss": encoder_loss,
            **critic_statistics(values, target, sizes.mean(axis=0), mask),
            SampleBatch.TD_ERROR: jnp.maximum(sizes.max(axis=0), 1.0),
        }
        loss = critic_loss + encoder_loss
        if "actor" in coefficients["parts"]:
            chosen = self.exploration.mode(out.policy)
            actor_loss = -masked_mean(frozen(model).critics(obs, chosen).mean(axis=0), mask)
            loss, statistics = loss + actor_loss, {**statistics, "actor_loss": actor_loss}
        model.see(target)
        model.renew((coefficients["num_updates"] + 1) % self.config.target_network_update_freq == 0)
        return loss, statistics

    def encoder_loss(self, encoder: StateActionEncoder, batch: Columns, mask: jax.Array) -> jax.Array:
        """[] mean((z_sa - z_s')²), Eq. 2, over the rows whose next observation a buffer has: without terminations."""
        mask = mask * (batch[SampleBatch.DISCOUNTS] > 0)
        following = lax.stop_gradient(encoder.states(batch[SampleBatch.NEW_OBS]))
        predicted = encoder.pairs(encoder.states(batch[SampleBatch.OBS]), batch[SampleBatch.ACTIONS])
        return masked_mean(jnp.square(predicted - following).mean(axis=-1), mask)


class TD7Trainer(TD3Trainer):
    """TD7: TD3 with embeddings of states and actions, prioritized replay, and bounded targets.

    Source: Fujimoto et al. (2023), arXiv:2306.02451. Its config is `TD7Config`.
    """

    name = "TD7"
    config_class = TD7Config
    policy_class = TD7
