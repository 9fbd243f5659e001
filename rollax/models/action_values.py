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
from jax import lax
from jaxtyping import Array, Float

from rollax.errors import PolicyError
from rollax.models.catalog import make_custom_model
from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.layers import MLP, dense
from rollax.models.networks import POLICY_GAIN, VALUE_GAIN, Trunk
from rollax.models.outputs import Outputs, is_noisy
from rollax.models.parametric import check_parametric, make_policy_head, policy_outputs
from rollax.models.q_network import QNetwork


class Actor(nnx.Module):
    """Raw observation columns to what actions are made of.

    Args:
        observation_space: of one observation.
        num_outputs: width A of the output.
        config: sizes.
        squashed: whether the outputs pass a tanh, and are actions in (-1, 1).
        rngs: where the weights are drawn from.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        squashed: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = make_policy_head(observation_space, self.trunk.features, num_outputs, gain=POLICY_GAIN, rngs=rngs)
        self.squashed = squashed

    def __call__(self, obs: Any) -> Outputs:
        outputs = policy_outputs(self.head, self.trunk(obs), obs)
        return Outputs(jnp.tanh(outputs) if self.squashed else outputs)


class CustomActor(nnx.Module):
    """A custom model in the place of an `Actor`: its `policy` outputs [B, A], squashed or not."""

    def __init__(self, network: Any, *, squashed: bool) -> None:
        self.network, self.squashed, self.noisy = network, squashed, is_noisy(network)

    def __call__(self, obs: Any) -> Outputs:
        out = self.network(obs)
        return out._replace(policy=jnp.tanh(out.policy)) if self.squashed else out


class ActionValue(nnx.Module):
    """Q(s, a) of continuous actions, which join the encoded observation before the hidden layers.

    Args:
        observation_space: of one observation.
        action_space: of one action.
        config: sizes; images are encoded, then they and the action pass `fcnet_hiddens`.
        rngs: where the weights are drawn from.
    """

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Box, config: ModelConfig, *, rngs: nnx.Rngs
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        width = math.prod(action_space.shape)
        self.mlp = MLP(self.encoder.features + width, config.fcnet_hiddens, config.fcnet_activation, rngs=rngs)
        self.head = dense(self.mlp.features, 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, obs: Any, actions: Float[Array, "B *shape"]) -> Float[Array, "B"]:
        flat = actions.reshape(actions.shape[0], -1)
        x = jnp.concatenate([self.encoder(obs), flat], axis=-1)
        return jnp.squeeze(self.head(self.mlp(x)), axis=-1)


class CustomActionValue(nnx.Module):
    """A custom model in the place of an `ActionValue`: `network(obs, actions).policy` is [B, 1]."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, obs: Any, actions: Float[Array, "B *shape"]) -> Float[Array, "B"]:
        return jnp.squeeze(self.network(obs, actions).policy, axis=-1)


class DiscreteActionValues(nnx.Module):
    """Q(s, a) of all of a few discrete actions.

    Args:
        network: `network(obs).policy` are the values [B, A].
    """

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, obs: Any) -> Float[Array, "B A"]:
        return self.network(obs).policy


class Ensemble(nnx.Module):
    """Several modules that are called alike, as one module whose weights have a leading axis.

    A product of matrices for all members at once is faster than one for each, on a CPU too.

    Args:
        members: N of them, that differ in their weights alone.
    """

    def __init__(self, members: Sequence[nnx.Module]) -> None:
        graphs, states = zip(*map(nnx.split, members), strict=True)
        # Stacked by NumPy, which compiles nothing.
        weights = jax.tree.map(lambda *leaves: jax.device_put(np.stack(leaves)), *states)
        self.members: Any = nnx.merge(graphs[0], weights)

    def __call__(self, *inputs: Any) -> Float[Array, "N *S"]:
        graph, weights = nnx.split(self.members)
        return jax.vmap(lambda of_one: nnx.merge(graph, of_one)(*inputs))(weights)

    def member(self, number: int) -> Any:
        """One of them, as a module."""
        graph, weights = nnx.split(self.members)
        return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[number], weights))


class ActorWithCritics(nnx.Module):
    """The actor's outputs, for acting; the critics are called by the loss.

    Args:
        actor: observations to outputs.
        critics: values of actions; `Ensemble` of `ActionValue` or `DiscreteActionValues`.
        initial_alpha: of a model with a temperature α, the first one; None: it has none.
    """

    def __init__(self, actor: Actor | CustomActor, critics: Ensemble, *, initial_alpha: float | None = None) -> None:
        self.actor = actor
        self.critics = critics
        start = None if initial_alpha is None else np.float32(math.log(initial_alpha))
        self.noisy = is_noisy(actor)
        self.log_alpha = None if start is None else nnx.Param(jnp.asarray(start))

    def __call__(self, obs: Any) -> Outputs:
        return self.actor(obs)


def make_actor(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    *,
    squashed: bool = False,
    rngs: nnx.Rngs,
) -> Actor | CustomActor:
    """The actor that the config asks for: the default layers, or a custom model with `policy` outputs [B, num_outputs].

    Args:
        observation_space: of one observation.
        action_space: of one action.
        num_outputs: width of the outputs.
        config: sizes, or the custom model.
        squashed: whether the outputs pass a tanh.
        rngs: where the weights are drawn from.
    """
    if config.custom_model is None:
        check_parametric(observation_space, action_space)
        return Actor(observation_space, num_outputs, config, squashed=squashed, rngs=rngs)
    network = make_custom_model(observation_space, action_space, num_outputs, config, rngs, memory=False)
    return CustomActor(network, squashed=squashed)


def make_critics(
    observation_space: spaces.Space, action_space: spaces.Space, count: int, config: ModelConfig, *, rngs: nnx.Rngs
) -> Ensemble:
    """As many critics, of continuous actions or of one discrete choice; of custom models one for each.

    Raises:
        PolicyError: a custom model with state beside its parameters, such as dropout or batch statistics.
    """

    space, discrete = observation_space, isinstance(action_space, spaces.Discrete)

    def critic() -> nnx.Module:
        if config.custom_model is not None:
            width = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 1
            network = make_custom_model(
                space, action_space, width, config, rngs, takes_actions=not discrete, memory=False
            )
            return DiscreteActionValues(network) if discrete else CustomActionValue(network)
        if isinstance(action_space, spaces.Discrete):
            return DiscreteActionValues(QNetwork(space, int(action_space.n), config, dueling=False, rngs=rngs))
        assert isinstance(action_space, spaces.Box)
        return ActionValue(space, action_space, config, rngs=rngs)

    members = [critic() for _ in range(count)]
    if other := jax.tree.leaves(nnx.state(members[0], nnx.Not(nnx.Param))):
        raise PolicyError(
            "A critic with state beside its parameters.",
            where="config key 'model.custom_model'",
            got=f"{len(other)} further arrays, such as batch statistics or random streams",
            expected="parameters alone where the model is built with num_outputs of a critic",
            fix="leave out dropout and batch normalization in the critics, or use PPO or DQN",
        )
    return Ensemble(members)


def frozen(module: Any) -> Any:
    """The module with the same weights as constants: gradients flow through it, but none into it."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, lax.stop_gradient(state))
