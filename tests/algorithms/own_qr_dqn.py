"""QR-DQN, an algorithm with replay that is defined outside of the library. It learns quantiles of the return.

Source: Dabney et al. (2018), arXiv:1710.10044, Eq. 10:
    L = Σ_i E_j |τ_i - 1{u_ij < 0}| huber(u_ij),  u_ij = r + γ θ⁻_j(s', a*) - θ_i(s, a),  τ_i = (i - ½) / N.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from pydantic import Field

from rollax import DQN, DQNConfig, DQNTrainer, Outputs
from rollax.models.networks import Trunk
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import huber


class QuantileNetwork(nnx.Module):
    """Outputs `aux["quantiles"]` [B, A, N] of the return of each action; their means are the values."""

    def __init__(self, observation_space, num_actions, quantiles, config, *, rngs):
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = nnx.Linear(self.trunk.features, num_actions * quantiles, rngs=rngs)
        self.num_actions = num_actions

    def __call__(self, obs):
        hidden = self.trunk(obs)
        quantiles = self.head(hidden).reshape(len(hidden), self.num_actions, -1)
        return Outputs(policy=quantiles.mean(axis=-1), aux={"quantiles": quantiles})


class QRDQNConfig(DQNConfig):
    """The keys of DQN, and the number of quantiles."""

    num_quantiles: int = Field(default=32, ge=1, description="N, quantiles of the distribution of returns")


class QRDQN(DQN):
    """Exploration, replay and the target network are those of DQN."""

    config_class = QRDQNConfig

    def make_model(self, rngs):
        config, actions = self.config, int(self.action_space.n)
        return QuantileNetwork(self.observation_space, actions, config.num_quantiles, config.model, rngs=rngs)

    def targets(self, model, target_model, batch, mask, coefficients):
        following = {"obs": batch["new_obs"]}
        out = self.forward(target_model, following)  # invalid actions are masked
        selector = self.forward(model, following).policy if self.config.double_q else out.policy
        quantiles = chosen_quantiles(out, jnp.argmax(selector, axis=-1))
        return {"target": batch["rewards"][:, None] + batch["discounts"][:, None] * quantiles}

    def loss(self, model, out, batch, mask, coefficients):
        quantiles = chosen_quantiles(out, batch["actions"] - int(self.action_space.start))
        losses = quantile_huber(quantiles, batch["target"])
        loss = masked_mean(losses * batch["weights"], mask)
        values, targets = quantiles.mean(axis=-1), batch["target"].mean(axis=-1)
        return loss, {
            "q_loss": loss,
            "mean_q": masked_mean(values, mask),
            "mean_target": masked_mean(targets, mask),
            "mean_td_error": masked_mean(jnp.abs(values - targets), mask),
            "td_error": losses,  # [B]: the priorities of prioritized replay
        }


class QRDQNTrainer(DQNTrainer):
    """DQN with quantiles."""

    name, config_class, policy_class = "QR-DQN", QRDQNConfig, QRDQN


def chosen_quantiles(out: Outputs, actions: jax.Array) -> jax.Array:
    """[B, N] the quantiles of one action in each row."""
    return out.aux["quantiles"][jnp.arange(len(actions)), actions]


def quantile_huber(quantiles: jax.Array, targets: jax.Array) -> jax.Array:
    """[B] the quantile regression loss of quantiles [B, N] for targets [B, M]."""
    count = quantiles.shape[1]
    fractions = (jnp.arange(count) + 0.5) / count
    errors = targets[:, None, :] - quantiles[:, :, None]
    weights = jnp.abs(fractions[None, :, None] - (errors < 0))
    return (weights * huber(errors)).mean(axis=2).sum(axis=1)
