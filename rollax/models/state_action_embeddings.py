"""Embeddings of states and of pairs of state and action, and networks that read them.

Source: Fujimoto et al. (2023), "For SALE: State-Action Representation Learning", arXiv:2306.02451. Deviations: kernels
are orthogonal at first; images, discrete values and nested observations are encoded as in the other models.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN
from rollax.models.layers import MLP, dense
from rollax.models.outputs import Outputs

_LEAST_MEAN = 1e-8
_UNSEEN = np.array([1e8, -1e8], np.float32)  # the lowest and the highest of no values


def with_average_norm(x: Float[Array, "B F"]) -> Float[Array, "B F"]:
    """x divided by the mean magnitude of its elements, row by row ("AvgL1Norm", Eq. 4)."""
    return x / jnp.maximum(jnp.abs(x).mean(axis=-1, keepdims=True), _LEAST_MEAN)


class StateActionEncoder(nnx.Module):
    """Embeddings z_s [B, Z] of observations, and z_sa [B, Z] of observations and actions; Eq. 1 and 4.

    Args:
        width: Z.
        config: `fcnet_hiddens` are the hidden layers, with ELU, of each of the two networks.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        width: int,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        self.of_states = MLP(self.encoder.features, config.fcnet_hiddens, "elu", rngs=rngs)
        self.states_head = dense(self.of_states.features, width, gain=VALUE_GAIN, rngs=rngs)
        self.of_pairs = MLP(width + math.prod(action_space.shape or ()), config.fcnet_hiddens, "elu", rngs=rngs)
        self.pairs_head = dense(self.of_pairs.features, width, gain=VALUE_GAIN, rngs=rngs)

    def states(self, obs: Any) -> Float[Array, "B Z"]:
        """z_s, from raw observation columns."""
        return with_average_norm(self.states_head(self.of_states(self.encoder(obs))))

    def pairs(self, states: Float[Array, "B Z"], actions: Float[Array, "B *shape"]) -> Float[Array, "B Z"]:
        """z_sa, from z_s and actions."""
        flat = actions.reshape(len(actions), -1)
        return self.pairs_head(self.of_pairs(jnp.concatenate([states, flat], axis=-1)))


class EmbeddingActor(nnx.Module):
    """`num_outputs` action parameters from raw observation columns and z_s."""

    def __init__(
        self, observation_space: spaces.Space, num_outputs: int, width: int, config: ModelConfig, *, rngs: nnx.Rngs
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        self.first = dense(self.encoder.features, width, gain=HIDDEN_GAIN, rngs=rngs)
        self.mlp = MLP(2 * width, config.fcnet_hiddens, config.fcnet_activation, rngs=rngs)
        self.head = dense(self.mlp.features, num_outputs, gain=POLICY_GAIN, rngs=rngs)

    def __call__(self, obs: Any, states: Float[Array, "B Z"]) -> Float[Array, "B Q"]:
        x = with_average_norm(self.first(self.encoder(obs)))
        return self.head(self.mlp(jnp.concatenate([x, states], axis=-1)))


class EmbeddingActionValue(nnx.Module):
    """Q(s, a) [B] from raw observation columns, actions, z_sa and z_s; its hidden layers have ELU."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        width: int,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        inputs = self.encoder.features + math.prod(action_space.shape or ())
        self.first = dense(inputs, width, gain=HIDDEN_GAIN, rngs=rngs)
        self.mlp = MLP(3 * width, config.fcnet_hiddens, "elu", rngs=rngs)
        self.head = dense(self.mlp.features, 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(
        self, obs: Any, actions: Float[Array, "B *shape"], pairs: Float[Array, "B Z"], states: Float[Array, "B Z"]
    ) -> Float[Array, "B"]:
        x = jnp.concatenate([self.encoder(obs), actions.reshape(len(actions), -1)], axis=-1)
        x = jnp.concatenate([with_average_norm(self.first(x)), pairs, states], axis=-1)
        return jnp.squeeze(self.head(self.mlp(x)), axis=-1)


class EmbeddingModel(nnx.Module):
    """An actor and critics that read embeddings, the encoder of the embeddings, and two earlier copies of the encoder.

    Actor and critics read the embeddings of `fixed_encoder`; targets are computed from embeddings of `target_encoder`.
    The variables of both encoders are not trained: `renew` sets them.

    Attributes:
        seen: [2] the lowest and the highest target so far.
        bounds: [2] the bounds of values in targets, which are 0 before the first `renew`, as in the authors' code.
    """

    def __init__(self, actor: EmbeddingActor, q_networks: Any, encoder: StateActionEncoder) -> None:
        self.actor, self.q_networks, self.encoder = actor, q_networks, encoder
        self.fixed_encoder, self.target_encoder = _constant(encoder), _constant(encoder)
        self.seen = nnx.Variable(jax.device_put(_UNSEEN))
        self.bounds = nnx.Variable(jax.device_put(np.zeros(2, np.float32)))

    def __call__(self, obs: Any) -> Outputs:
        return Outputs(jnp.tanh(self.actor(obs, self.fixed_encoder.states(obs))))

    def critics(self, obs: Any, actions: Float[Array, "B *shape"]) -> Float[Array, "N B"]:
        """Q_i(s, a) of each critic."""
        states = self.fixed_encoder.states(obs)
        return self.q_networks(obs, actions, self.fixed_encoder.pairs(states, actions), states)

    def see(self, targets: Float[Array, "B"]) -> None:
        """Adds targets to `seen`."""
        lowest, highest = self.seen[...]
        self.seen[...] = jnp.stack([jnp.minimum(lowest, targets.min()), jnp.maximum(highest, targets.max())])

    def renew(self, due: Any) -> None:
        """If `due`: target_encoder ← fixed_encoder ← encoder, and `bounds` ← `seen`."""
        self.bounds[...] = jnp.where(due, self.seen[...], self.bounds[...])
        for to, source in ((self.target_encoder, self.fixed_encoder), (self.fixed_encoder, self.encoder)):
            newer, (older, tree) = jax.tree.leaves(nnx.state(source)), jax.tree.flatten(nnx.state(to))
            chosen = [jnp.where(due, new, old) for new, old in zip(newer, older, strict=True)]
            nnx.update(to, jax.tree.unflatten(tree, chosen))


def _constant(module: Any) -> Any:
    """A copy whose parameters are variables that are not trained."""
    copy = nnx.clone(module)
    for _, part in nnx.iter_modules(copy):
        for name, value in list(vars(part).items()):
            if isinstance(value, nnx.Param):
                setattr(part, name, nnx.Variable(value[...]))
    return copy
