"""Models with an actor and several critics, for algorithms that learn from replayed experience."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jax import core, lax
from jaxtyping import Array, Float

from rollax.batch import Columns, SampleBatch
from rollax.core.numbers import is_whole
from rollax.core.spaces import is_parametric
from rollax.errors import PolicyError, SpaceError
from rollax.models.action_embeddings import check_parametric
from rollax.models.catalog import make_custom_model
from rollax.models.config import LayersConfig, ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import POLICY_GAIN, VALUE_GAIN
from rollax.models.layers import dense
from rollax.models.networks import Trunk, make_mlp, make_policy_head, policy_outputs
from rollax.models.outputs import Outputs, State, is_noisy
from rollax.models.q_network import QNetwork
from rollax.models.recurrent import RecurrentTrunk
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


class RecurrentActor(nnx.Module):
    """`Actor` with memory; see `run_model`."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.trunk = RecurrentTrunk(observation_space, action_space, config, rngs=rngs)
        self.head = make_policy_head(observation_space, self.trunk.features, num_outputs, gain=POLICY_GAIN, rngs=rngs)

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The recurrent state at the start of a trajectory."""
        return self.trunk.initial_state()

    def __call__(self, obs: Any, state: State, **memory: Any) -> Outputs:
        hidden, state = self.trunk(obs, state, **memory)
        return Outputs(policy_outputs(self.head, hidden, obs), state=state)


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
    """State values V(s) [B], from raw observation columns."""

    def __init__(self, observation_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.head = dense(self.trunk.features, 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, obs: Any) -> Float[Array, "B"]:
        return jnp.squeeze(self.head(self.trunk(obs)), axis=-1)


class ActionValue(nnx.Module):
    """Q(s, a) of continuous actions, which are concatenated with the encoded observation before `fcnet_hiddens`.

    With B observations and R = B·S actions, the first S actions belong to the first observation, and so on. Each
    observation is encoded once.

    The result is [R, K], with K `outputs` for each action, such as quantiles of its return; [R] if `outputs` is None.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        config: LayersConfig,
        *,
        outputs: int | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.outputs = outputs
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        width = self.encoder.features + math.prod(action_space.shape)
        self.mlp = make_mlp(width, config.fcnet_hiddens, config, rngs=rngs)
        self.head = dense(self.mlp.features, outputs or 1, gain=VALUE_GAIN, rngs=rngs)

    def __call__(self, obs: Any, actions: Float[Array, "R *shape"]) -> Float[Array, "R *K"]:
        flat, encoded = actions.reshape(actions.shape[0], -1), self.encoder(obs)
        x = jnp.concatenate([jnp.repeat(encoded, len(flat) // len(encoded), axis=0), flat], axis=-1)
        values = self.head(self.mlp(x))
        return jnp.squeeze(values, axis=-1) if self.outputs is None else values


class NetworkValues(nnx.Module):
    """Q-values of a network of A discrete actions, or of a network that takes R continuous actions as inputs.

    They are [B, A] from `network(obs).policy`, or [R] from `network(obs, actions).policy` [R, 1]. With K `outputs` for
    each action they are [B, A, K] from `policy` [B, A·K], or [R, K] from `policy` [R, K].

    With B observations and R = B·S actions, the first S actions belong to the first observation, and so on. Layers that
    read only observations are computed once for each observation.
    """

    def __init__(self, network: Any, outputs: int | None = None) -> None:
        self.network, self.outputs = network, outputs

    def __call__(self, obs: Any, actions: Float[Array, "R *shape"] | None = None) -> Float[Array, "R *AK"]:
        if actions is None:
            values = self.network(obs).policy
            return values if self.outputs is None else values.reshape(len(values), -1, self.outputs)
        rows = len(jax.tree.leaves(obs)[0])
        if len(actions) == rows:
            values = self.network(obs, actions).policy
        else:
            graph, state = nnx.split(self.network)

            def of_each(taken: Array) -> Array:
                # A copy, because a mapped function cannot change the network's own batch statistics.
                return nnx.merge(graph, state, copy=True)(obs, taken).policy

            by_observation = actions.reshape(rows, -1, *actions.shape[1:])
            values = jax.vmap(of_each, in_axes=1, out_axes=1)(by_observation).reshape(len(actions), -1)
        return jnp.squeeze(values, axis=-1) if self.outputs is None else values


class OneOutput(nnx.Module):
    """V(s) [B] of a network, from `network(obs).policy` [B, 1]."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, obs: Any) -> Float[Array, "B"]:
        return jnp.squeeze(self.network(obs).policy, axis=-1)


def _stacked(*leaves: Array) -> Array:
    if isinstance(leaves[0], core.Tracer) or jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(leaves)
    return jax.device_put(np.stack(leaves))  # by NumPy, which compiles nothing


class Ensemble(nnx.Module):
    """N modules that differ only in their arrays, as one module whose arrays have a leading axis.

    One matrix product for all members is faster than one product for each member, also on a CPU. Besides its weights,
    each member has its own state, such as batch statistics and random streams, which a call in training mode changes.
    """

    def __init__(self, members: Sequence[nnx.Module]) -> None:
        graphs, states = zip(*map(nnx.split, members), strict=True)
        weights = jax.tree.map(_stacked, *states)
        self.members: Any = nnx.merge(graphs[0], weights)
        self.count = len(members)

    def __call__(self, obs: Any, *actions: Any) -> Float[Array, "N *S"]:
        graph, weights, state = nnx.split(self.members, nnx.Param, ...)
        # Actions get a leading axis too: the first layer then multiplies [N, R, in] by [N, in, out], and XLA need not
        # transpose the result. Observations get no leading axis, because images would be copied.
        of_each = jax.tree.map(lambda values: jnp.broadcast_to(values, (self.count, *values.shape)), actions)

        def of_member(weights: Any, state: Any, taken: Any) -> tuple[Array, Any]:
            member: Any = nnx.merge(graph, weights, state)
            values = member(obs, *taken)
            return values, nnx.state(member, nnx.Not(nnx.Param))

        values, state = jax.vmap(of_member)(weights, state, of_each)
        nnx.update(self.members, state)
        return values

    def member(self, number: int) -> Any:
        """Returns one member as a module."""
        graph, weights = nnx.split(self.members)
        return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[number], weights))


class ActorWithCritics(nnx.Module):
    """An actor, whose outputs the model returns, and critics, which the loss calls.

    Args:
        squashed: whether a tanh is applied to the actor's `policy`, so that it contains actions in (-1, 1).
        initial_alpha: initial temperature α; None: the model has no temperature.
        state_value: V(s), which the loss calls; None: the model has no state value.
    """

    def __init__(
        self,
        actor: Any,
        critics: Any,
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
    """Returns the default actor, with memory if the config says so, or the custom model; `policy` [B, num_outputs]."""
    if config.custom_model is not None:
        return make_custom_model(observation_space, action_space, num_outputs, config, rngs, memory=False)
    check_parametric(observation_space, action_space)
    if config.has_memory:
        return RecurrentActor(observation_space, action_space, num_outputs, config, rngs=rngs)
    return Actor(observation_space, num_outputs, config, rngs=rngs)


def make_critics(number: int, make_one: Callable[[], nnx.Module]) -> Ensemble:
    """Returns `number` critics, each built by a call of `make_one`, as one module.

    Args:
        number: N, at least 1.
        make_one: builds a critic of continuous actions, `critic(obs, actions)` -> [R] or [R, K], or of a discrete
            choice, `critic(obs)` -> [B, A] or [B, A, K], for example by `make_critic`. A critic may have batch
            statistics or random streams. All critics must have equal layers.
    Returns:
        A module: `critics(obs, actions)` -> [N, R] or [N, R, K]; for a discrete choice `critics(obs)` -> [N, B, A] or
        [N, B, A, K].
    Raises:
        PolicyError: there are no critics, or their layers differ.
    """
    if not (is_whole(number) and number >= 1):
        raise PolicyError("There are no critics.", "make_critics, number", number).expected(
            "an integer of at least 1", "pass the number of critics"
        )
    members = [make_one() for _ in range(number)]
    layers = list(map(_shapes, members))
    if different := [place for place, shapes in enumerate(layers) if shapes != layers[0]]:
        raise PolicyError(
            "The critics have different layers.",
            "make_critics, make_one",
            f"{sorted(layers[different[0]] ^ layers[0])} in critic {different[0]} or in critic 0 only",
        ).expected("modules with equal layers", "build each critic with the same arguments, apart from `rngs`")
    return Ensemble(members)


def _shapes(module: nnx.Module) -> set[tuple[str, tuple[int, ...]]]:
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(module))
    return {(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape) for path, leaf in leaves}


def make_critic(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    config: LayersConfig,
    *,
    outputs: int | None = None,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """Returns a default critic of continuous actions or of one discrete choice, or the custom model.

    Args:
        outputs: K, the number of outputs for each action, such as quantiles of its return: the critic returns [R, K],
            or [B, A, K] for a discrete choice; None: one value for each action, [R] or [B, A].
    Raises:
        SpaceError: `outputs` is set, but the actions have embeddings.
    """
    num_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else None
    width = (num_actions or 1) * (outputs or 1)
    if isinstance(config, ModelConfig) and config.custom_model is not None:
        options: dict[str, Any] = {"takes_actions": num_actions is None, "memory": False}
        network = make_custom_model(observation_space, action_space, width, config, rngs, **options)
        return NetworkValues(network, outputs)
    if num_actions is not None:
        if outputs is not None and is_parametric(observation_space):
            raise SpaceError(
                "Critics of actions with embeddings have one output.", "make_critic, outputs", outputs
            ).expected("None", "build the critics in a function of your own: make_critics(number, make_one)")
        return NetworkValues(QNetwork(observation_space, width, config, dueling=False, rngs=rngs), outputs)
    assert isinstance(action_space, spaces.Box)
    return ActionValue(observation_space, action_space, config, outputs=outputs, rngs=rngs)


def make_state_value(
    observation_space: spaces.Space, action_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs
) -> Any:
    """Returns a model of V(s) [B]: a custom model with one output if the config has one, else a `StateValue`."""
    if config.custom_model is None:
        return StateValue(observation_space, config, rngs=rngs)
    return OneOutput(make_custom_model(observation_space, action_space, 1, config, rngs, memory=False))


def values_of_actions(critics: Any, obs: Any, actions: Any, action_space: spaces.Space) -> Float[Array, "N B *K"]:
    """Returns [N, B] or [N, B, K], the critics' outputs for one action in each row."""
    if not isinstance(action_space, spaces.Discrete):
        return critics(obs, actions)
    places, values = jnp.asarray(actions).astype(jnp.int32) - int(action_space.start), critics(obs)
    of_members = jax.vmap(chosen, in_axes=(0, None))
    if values.ndim == 3:
        return of_members(values, places)
    return jax.vmap(of_members, in_axes=(-1, None), out_axes=-1)(values, places)


def joined(first: Any, second: Any) -> Any:
    """Returns the rows of two columns as one column."""
    return jax.tree.map(lambda *halves: jnp.concatenate(halves), first, second)


def values_of_both(
    critics: Any, batch: Columns, next_actions: Any
) -> tuple[Float[Array, "N B *K"], Float[Array, "N B *K"]]:
    """Returns the critics' outputs for (s, a) and for (s', a') from one pass, with joint batch statistics.

    Source: Bhatt et al. (2024), "CrossQ", section 3.1, arXiv:1902.05605.

    Args:
        critics: `critics(obs, actions)` -> [N, R, *K].
        batch: the columns `obs`, `actions` and `new_obs`.
        next_actions: [B, ...] a'.
    """
    obs = joined(batch[SampleBatch.OBS], batch[SampleBatch.NEW_OBS])
    first, second = jnp.split(critics(obs, joined(batch[SampleBatch.ACTIONS], next_actions)), 2, axis=1)
    return first, second


def frozen(module: Any) -> Any:
    """Returns a copy with constant weights and running statistics: gradients reach its inputs, but not its weights."""
    graph, state = nnx.split(module)
    constant = nnx.merge(graph, lax.stop_gradient(state))
    constant.set_attributes(use_running_average=True, raise_if_not_found=False)
    return constant
