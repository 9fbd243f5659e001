"""`CentralCritic`: the model of a centralized critic, which sees all agents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import VALUE_GAIN, number_of_agents
from rollax.models.layers import dense
from rollax.models.networks import make_mlp


class CentralCritic(nnx.Module):
    """State values from an agent's own observation, and the observations and actions of all other agents.

    One encoder serves all other agents, so that the number of layers does not grow with the number of agents.
    `critic_space` is a Dict of `agent` (Discrete(A), the agent's index), `obs` (the agent's own observation) and
    `other` (what the critic sees of one other agent).
    """

    def __init__(
        self,
        critic_space: Any,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        self.agents = number_of_agents(critic_space)
        self.own_encoder = Encoder(critic_space["obs"], config, rngs=rngs)
        self.other_encoder = Encoder(critic_space["other"], config, rngs=rngs)
        features = self.agents + self.own_encoder.features + (self.agents - 1) * self.other_encoder.features
        self.mlp = make_mlp(features, config.fcnet_hiddens, config, rngs=rngs)
        self.value_shape = value_shape
        self.head = dense(self.mlp.features, math.prod(value_shape), gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, critic_obs: Mapping[str, Any]) -> Float[Array, "B *H"]:
        """Returns the values of B rows; the columns of `other` are [B, A - 1, ...]."""
        own = self.own_encoder(critic_obs["obs"])
        which = critic_obs["agent"][:, None] == np.arange(self.agents)
        each = jax.tree.map(lambda leaf: leaf.reshape(math.prod(leaf.shape[:2]), *leaf.shape[2:]), critic_obs["other"])
        others = self.other_encoder(each).reshape(len(own), -1)
        x = jnp.concatenate([which.astype(jnp.float32), own, others], axis=-1)
        values = self.head(self.mlp(x))
        return values if self.value_shape else jnp.squeeze(values, axis=-1)
