"""`CentralCritic`: a value function that sees what every agent observes and what the others do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.layers import MLP, dense


def with_critic(model: Any, critic_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> Any:
    """The model with a `critic` that sees `critic_space`: its own if it has one, else a `CentralCritic`."""
    if not hasattr(model, "critic"):
        model.critic = CentralCritic(critic_space, config, rngs=rngs)
    return model


class CentralCritic(nnx.Module):
    """State values from an agent's own observation, and the observations and actions of all other agents.

    One encoder serves all the others, so the number of layers does not grow with the number of agents; their features
    stand side by side, in a fixed order.

    Args:
        critic_space: Dict of `agent` (Discrete(A): which of the A agents this one is), `obs` (its own observation) and
            `other` (what is known of one other agent).
        config: sizes; the hidden layers are as wide as the actor's.
        rngs: where the weights are drawn from.
    """

    def __init__(self, critic_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        assert isinstance(critic_space, spaces.Dict)
        which = critic_space["agent"]
        assert isinstance(which, spaces.Discrete)
        self.agents = int(which.n)
        self.own_encoder = Encoder(critic_space["obs"], config, rngs=rngs)
        self.other_encoder = Encoder(critic_space["other"], config, rngs=rngs)
        features = self.agents + self.own_encoder.features + (self.agents - 1) * self.other_encoder.features
        self.mlp = MLP(features, config.fcnet_hiddens, config.fcnet_activation, rngs=rngs)
        self.head = dense(self.mlp.features, 1, gain=1.0, rngs=rngs)

    def __call__(self, critic_obs: Mapping[str, Any]) -> Float[Array, "B"]:
        """Values of B rows; the columns of `other` are [B, A - 1, ...]."""
        own = self.own_encoder(critic_obs["obs"])
        which = critic_obs["agent"][:, None] == np.arange(self.agents)
        each = jax.tree.map(lambda leaf: leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]), critic_obs["other"])
        others = self.other_encoder(each).reshape(len(own), -1)
        x = jnp.concatenate([which.astype(jnp.float32), own, others], axis=-1)
        return jnp.squeeze(self.head(self.mlp(x)), axis=-1)
