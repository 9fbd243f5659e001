"""Models with an actor and several critics, for algorithms that learn from replayed experience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jax import core, lax
from jaxtyping import Array, Float

from rollax.errors import PolicyError
from rollax.models.catalog import make_custom_model
from rollax.models.config import ModelConfig
from rollax.models.embeddings import check_parametric
from rollax.models.encoder import Encoder
from rollax.models.features import POLICY_GAIN, VALUE_GAIN
from rollax.models.layers import MLP, dense
from rollax.models.networks import Trunk
from rollax.models.outputs import Outputs, is_noisy
from rollax.models.parametric import make_policy_head, policy_outputs
from rollax.models.q_network import QNetwork
from rollax.ops.q_learning import chosen


class Actor(nnx.Module):
    """`num_outputs` action parameters from raw observation columns."""

    def __init__(
        self, observation_space: spaces.Space, num_outputs: int, config: ModelConfig, *, rngs: nnx.Rngs
    ) -> None:
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = make_policy_head(observation_space, self.trunk.features, num_outputs, gain=POLICY_GAIN, rngs=rngs)

    def __call__(self, obs: Any) -> Outputs:
        return Outputs(policy_outputs(self.head, self.trunk(obs), obs))


class GaussianActor(nnx.Module):
    """Means in (-1, 1) from an actor's outputs, and one trained vector of log standard deviations."""

    def __init__(self, actor: Any, num_actions: int) -> None:
        self.actor, self.noisy = actor, is_noisy(actor)
        self.log_std = nnx.Param(jnp.asarray(np.zeros(num_actions, np.float32)))

    def __call__(self, obs: Any) -> Outputs:
        out = self.actor(obs)
        log_std = jnp.broadcast_to(self.log_std[...][None], out.policy.shape)
        return out._replace(policy=jnp.concatenate([jnp.tanh(out.policy), log_std], axis=-1))


class StateValue(nnx.Module):
    """V(s)."""

    def __init__(self, observation_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = dense(self.trunk.features, 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, obs: Any) -> Float[Array, "B"]:
        return jnp.squeeze(self.head(self.trunk(obs)), axis=-1)


class ActionValue(nnx.Module):
    """Q(s, a) of continuous actions, which are concatenated with the encoded observation before `fcnet_hiddens`.

    Of B observations and R = B·S actions, the first S actions belong to the first observation, which is encoded once.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        config: ModelConfig,
        *,
        layer_norm: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        width = self.encoder.features + math.prod(action_space.shape)
        self.mlp = MLP(width, config.fcnet_hiddens, config.fcnet_activation, layer_norm=layer_norm, rngs=rngs)
        self.head = dense(self.mlp.features, 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, obs: Any, actions: Float[Array, "R *shape"]) -> Float[Array, "R"]:
        flat, encoded = actions.reshape(actions.shape[0], -1), self.encoder(obs)
        x = jnp.concatenate([jnp.repeat(encoded, len(flat) // len(encoded), axis=0), flat], axis=-1)
        return jnp.squeeze(self.head(self.mlp(x)), axis=-1)


class NetworkValues(nnx.Module):
    """Q-values of a network: [B, A] from `network(obs).policy`, or [R] from `network(obs, actions).policy` [R, 1].

    Of B observations and R = B·S actions, the first S actions belong to the first observation. What depends on an
    observation alone is computed once.
    """

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, obs: Any, actions: Float[Array, "R *shape"] | None = None) -> Float[Array, "R *A"]:
        if actions is None:
            return self.network(obs).policy
        rows = len(jax.tree.leaves(obs)[0])
        if len(actions) == rows:
            return jnp.squeeze(self.network(obs, actions).policy, axis=-1)
        graph, state = nnx.split(self.network)
        values = jax.vmap(lambda of_each: nnx.merge(graph, state)(obs, of_each).policy, in_axes=1, out_axes=1)(
            actions.reshape(rows, -1, *actions.shape[1:])
        )
        return values.reshape(-1)


class OneOutput(nnx.Module):
    """V(s) [B] of a network, from `network(obs).policy` [B, 1]."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, obs: Any) -> Float[Array, "B"]:
        return jnp.squeeze(self.network(obs).policy, axis=-1)


def _stacked(*leaves: Array) -> Array:
    if isinstance(leaves[0], core.Tracer):
        return jnp.stack(leaves)
    return jax.device_put(np.stack(leaves))  # by NumPy, which compiles nothing


class Ensemble(nnx.Module):
    """N modules that differ only in their weights, as one module whose weights have a leading axis.

    One matrix product for all members is faster than one for each, also on a CPU.
    """

    def __init__(self, members: Sequence[nnx.Module]) -> None:
        graphs, states = zip(*map(nnx.split, members), strict=True)
        weights = jax.tree.map(_stacked, *states)
        self.members: Any = nnx.merge(graphs[0], weights)
        self.count = len(members)

    def __call__(self, obs: Any, *actions: Any) -> Float[Array, "N *S"]:
        graph, weights = nnx.split(self.members)
        # Actions have a leading axis too: the first product is then one of [N, R, in] and [N, in, out], whose result
        # XLA need not transpose. Observations have none: images would be copied.
        of_each = jax.tree.map(lambda values: jnp.broadcast_to(values, (self.count, *values.shape)), actions)
        return jax.vmap(lambda own, taken: nnx.merge(graph, own)(obs, *taken))(weights, of_each)

    def member(self, number: int) -> Any:
        """One member as a module."""
        graph, weights = nnx.split(self.members)
        return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[number], weights))


class ActorWithCritics(nnx.Module):
    """An actor, whose outputs the model returns, and critics, which the loss calls.

    Args:
        squashed: whether the actor's `policy` passes a tanh, so that it holds actions in (-1, 1).
        initial_alpha: initial temperature α; None: the model has none.
        state_value: V(s), which the loss calls; None: the model has none.
    """

    def __init__(
        self,
        actor: Any,
        critics: Ensemble,
        *,
        squashed: bool = False,
        initial_alpha: float | None = None,
        state_value: Any = None,
    ) -> None:
        self.actor, self.critics, self.squashed, self.noisy = actor, critics, squashed, is_noisy(actor)
        self.state_value = state_value
        start = None if initial_alpha is None else np.float32(math.log(initial_alpha))
        self.log_alpha = None if start is None else nnx.Param(jnp.asarray(start))

    def __call__(self, obs: Any) -> Outputs:
        out = self.actor(obs)
        return out._replace(policy=jnp.tanh(out.policy)) if self.squashed else out


def make_actor(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    *,
    rngs: nnx.Rngs,
) -> Any:
    """The default actor or the custom model, with `policy` outputs [B, num_outputs]."""
    if config.custom_model is not None:
        return make_custom_model(observation_space, action_space, num_outputs, config, rngs, memory=False)
    check_parametric(observation_space, action_space)
    return Actor(observation_space, num_outputs, config, rngs=rngs)


def make_critics(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    count: int,
    config: ModelConfig,
    *,
    layer_norm: bool = False,
    rngs: nnx.Rngs,
) -> Ensemble:
    """`count` critics of continuous actions or of one discrete choice, each its own custom model if there is one.

    `layer_norm` adds layer normalization to default critics of continuous actions.

    Raises PolicyError for a custom model with state besides its parameters, such as dropout or batch statistics.
    """
    num_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else None

    def critic() -> nnx.Module:
        if config.custom_model is not None:
            outputs, options = num_actions or 1, {"takes_actions": num_actions is None, "memory": False}
            return NetworkValues(make_custom_model(observation_space, action_space, outputs, config, rngs, **options))
        if num_actions is not None:
            return NetworkValues(QNetwork(observation_space, num_actions, config, dueling=False, rngs=rngs))
        assert isinstance(action_space, spaces.Box)
        return ActionValue(observation_space, action_space, config, layer_norm=layer_norm, rngs=rngs)

    members = [critic() for _ in range(count)]
    _check_parameters_only(members[0])
    return Ensemble(members)


def make_state_value(
    observation_space: spaces.Space, action_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs
) -> Any:
    """V(s) [B], the custom model with one output if there is one; raises PolicyError as `make_critics`."""
    if config.custom_model is None:
        return StateValue(observation_space, config, rngs=rngs)
    value = OneOutput(make_custom_model(observation_space, action_space, 1, config, rngs, memory=False))
    _check_parameters_only(value)
    return value


def values_of_actions(critics: Any, obs: Any, actions: Any, action_space: spaces.Space) -> Float[Array, "N B"]:
    """[N, B] the critics' values of one action in each row."""
    if not isinstance(action_space, spaces.Discrete):
        return critics(obs, actions)
    places = jnp.asarray(actions).astype(jnp.int32) - int(action_space.start)
    return jax.vmap(chosen, in_axes=(0, None))(critics(obs), places)


def _check_parameters_only(critic: nnx.Module) -> None:
    if other := jax.tree.leaves(nnx.state(critic, nnx.Not(nnx.Param))):
        raise PolicyError(
            "The critic has state besides its parameters.",
            "config key 'model.custom_model'",
            f"{len(other)} further arrays",
        ).expected(
            "only parameters, where a critic is built", "leave dropout and batch normalization out, or use PPO or DQN"
        )


def frozen(module: Any) -> Any:
    """The module with constant weights: gradients flow through it, but none into it."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, lax.stop_gradient(state))
