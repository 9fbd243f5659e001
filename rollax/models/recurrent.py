"""Layers with memory over padded sequences, and `RecurrentActorCritic`, the default model with memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jax import lax
from jaxtyping import Array, Float

from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.gtrxl import GTrXL
from rollax.models.layers import orthogonal, zeros_init
from rollax.models.networks import ActorCritic, Trunk
from rollax.models.outputs import Outputs, State


class LSTM(nnx.Module):
    """Long short-term memory over sequences, from F `in_features` to H `features`.

    Source: Hochreiter and Schmidhuber (1997), doi:10.1162/neco.1997.9.8.1735, with the forget gate of Gers et al.
        (2000): c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g),  h' = σ(o) ⊙ tanh(c'),  where (i, f, g, o) = W x + U h + b.
        The forget gate's bias is initially 1 (Jozefowicz et al. 2015).
    """

    def __init__(self, in_features: int, features: int, *, rngs: nnx.Rngs) -> None:
        self.features = features
        self.input = nnx.Linear(
            in_features, 4 * features, kernel_init=_gates(4), bias_init=_forget_bias(features), rngs=rngs
        )
        self.recurrent = nnx.Linear(features, 4 * features, use_bias=False, kernel_init=_gates(4), rngs=rngs)

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory: zeros, without the axis of sequences."""
        zeros = np.zeros(self.features, np.float32)
        return (zeros, zeros)

    def __call__(self, x: Float[Array, "BT F"], state: State) -> tuple[Float[Array, "BT H"], State]:
        recurrent = self.recurrent.kernel[...]

        def step(carry: State, inputs: Array) -> tuple[State, Array]:
            h, c = carry
            i, f, g, o = jnp.split(inputs + h @ recurrent, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return _over_time(step, self.input(x), state)


class GRU(nnx.Module):
    """Gated recurrent unit over sequences, from F `in_features` to H `features`.

    Source: Cho et al. (2014), arXiv:1406.1078: h' = (1 - z) ⊙ n + z ⊙ h,  n = tanh(W_n x + b_n + r ⊙ (U_n h + d)),
        with (r, z) = σ(W x + U h + b). Deviations: the reset gate acts after the product with U_n, as in the usual
        implementations, so that one product serves all gates.
    """

    def __init__(self, in_features: int, features: int, *, rngs: nnx.Rngs) -> None:
        self.features = features
        self.input = nnx.Linear(in_features, 3 * features, kernel_init=_gates(3), bias_init=zeros_init, rngs=rngs)
        self.recurrent = nnx.Linear(features, 3 * features, kernel_init=_gates(3), bias_init=zeros_init, rngs=rngs)

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory: zeros, without the axis of sequences."""
        return (np.zeros(self.features, np.float32),)

    def __call__(self, x: Float[Array, "BT F"], state: State) -> tuple[Float[Array, "BT H"], State]:
        def step(carry: State, inputs: Array) -> tuple[State, Array]:
            (h,) = carry
            from_input, from_memory = jnp.split(inputs, 3, axis=-1), jnp.split(self.recurrent(h), 3, axis=-1)
            r, z = (jax.nn.sigmoid(a + b) for a, b in zip(from_input[:2], from_memory[:2], strict=True))
            n = jnp.tanh(from_input[2] + r * from_memory[2])
            h = (1 - z) * n + z * h
            return (h,), h

        return _over_time(step, self.input(x), state)


class RecurrentActorCritic(ActorCritic):
    """`ActorCritic` with an LSTM, a GRU or a transformer between the hidden layers and the heads.

    Rows are B concatenated sequences of equal length; the state has B rows. If actor and critic share no layers, each
    has its own memory. The state is a single array, the actor's state followed by the critic's state, because each
    further array costs the sampler as much as a small layer at every step.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__(
            observation_space,
            num_outputs,
            config,
            rngs=rngs,
            head_features=config.memory_width,
            value_shape=value_shape,
        )
        self.memory_inputs = _memory_inputs(config)
        self.action_encoder = Encoder(action_space, config, rngs=rngs) if config.lstm_use_prev_action else None
        extra = (self.action_encoder.features if self.action_encoder else 0) + config.lstm_use_prev_reward
        width = self.policy_trunk.features + extra
        self.policy_memory = make_memory(width, config, rngs=rngs)
        self.value_memory = None if self.value_trunk is None else make_memory(width, config, rngs=rngs)

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory, without the axis of sequences."""
        return (np.concatenate([part for memory in self._memories for part in memory.initial_state()]),)

    @property
    def _memories(self) -> list[Any]:
        return [self.policy_memory] if self.value_memory is None else [self.policy_memory, self.value_memory]

    def __call__(  # type: ignore[override]  a model with memory is another kind of model
        self, obs: Any, state: State, prev_actions: Any = None, prev_rewards: Any = None
    ) -> Outputs:
        extra = _previous(self, prev_actions, prev_rewards)
        parts, *of_critic = _parts(state, self._memories)
        hidden = jnp.concatenate([self.policy_trunk(obs), *extra], axis=-1)
        hidden, parts_out = self.policy_memory(hidden, parts)
        value_hidden = hidden
        if self.value_trunk is not None and self.value_memory is not None:
            value_hidden = jnp.concatenate([self.value_trunk(obs), *extra], axis=-1)
            value_hidden, value_parts = self.value_memory(value_hidden, of_critic[0])
            parts_out = (*parts_out, *value_parts)
        return self.heads(hidden, value_hidden, obs)._replace(state=(jnp.concatenate(parts_out, axis=1),))


class RecurrentTrunk(nnx.Module):
    """`Trunk` followed by a layer with memory; rows and state are as in `RecurrentActorCritic`."""

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs
    ) -> None:
        self.trunk = Trunk(observation_space, config, rngs=rngs)
        self.memory_inputs = _memory_inputs(config)
        self.action_encoder = Encoder(action_space, config, rngs=rngs) if config.lstm_use_prev_action else None
        extra = (self.action_encoder.features if self.action_encoder else 0) + config.lstm_use_prev_reward
        self.memory = make_memory(self.trunk.features + extra, config, rngs=rngs)
        self.features = self.memory.features

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory, without the axis of sequences."""
        return (np.concatenate(self.memory.initial_state()),)

    def __call__(
        self, obs: Any, state: State, prev_actions: Any = None, prev_rewards: Any = None
    ) -> tuple[Float[Array, "BT F"], State]:
        hidden = jnp.concatenate([self.trunk(obs), *_previous(self, prev_actions, prev_rewards)], axis=-1)
        hidden, parts = self.memory(hidden, *_parts(state, [self.memory]))
        return hidden, (jnp.concatenate(parts, axis=1),)


def make_memory(in_features: int, config: ModelConfig, *, rngs: nnx.Rngs) -> LSTM | GRU | GTrXL:
    """Returns the layer with memory that the config selects; by default an LSTM."""
    if config.use_attention:
        return GTrXL(in_features, config, rngs=rngs)
    return (GRU if config.use_gru else LSTM)(in_features, config.lstm_cell_size, rngs=rngs)


def _parts(state: State, memories: Sequence[Any]) -> list[State]:
    """Returns the state of each layer in `memories`, from the array that contains all states."""
    sizes = [[len(part) for part in memory.initial_state()] for memory in memories]
    parts = iter(jnp.split(state[0], np.cumsum([size for of_one in sizes for size in of_one])[:-1], axis=1))
    return [tuple(next(parts) for _ in of_one) for of_one in sizes]


def _memory_inputs(config: ModelConfig) -> tuple[str, ...]:
    inputs = {"prev_actions": config.lstm_use_prev_action, "prev_rewards": config.lstm_use_prev_reward}
    return tuple(name for name, used in inputs.items() if used)


def _previous(model: Any, prev_actions: Any, prev_rewards: Any) -> list[Array]:
    """[BT, ...] the features of previous actions and rewards that are inputs of the memory."""
    features = [] if model.action_encoder is None else [model.action_encoder(prev_actions)]
    return [*features, prev_rewards[:, None]] if "prev_rewards" in model.memory_inputs else features


def _over_time(
    step: Callable[[State, Array], tuple[State, Array]], inputs: Float[Array, "BT G"], state: State
) -> tuple[Float[Array, "BT H"], State]:
    """Returns the outputs of `step` for all rows of concatenated sequences, and the state after the last rows.

    A sequence never spans the end of a trajectory (see `batch/sequences.py`), so that no state is reset in a sequence.
    """
    sequences = state[0].shape[0]
    if inputs.shape[0] == sequences:
        state, out = step(state, inputs)
        return out, state
    by_sequence = inputs.reshape(sequences, -1, inputs.shape[-1])
    state, out = lax.scan(step, state, jnp.swapaxes(by_sequence, 0, 1))
    return jnp.swapaxes(out, 0, 1).reshape(inputs.shape[0], -1), state


def _gates(count: int) -> Callable[..., Array]:
    """Returns an initializer: an orthogonal matrix for each gate."""

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        one = (shape[0], shape[1] // count)
        return jnp.concatenate([orthogonal(1.0)(k, one, dtype) for k in jax.random.split(key, count)], axis=1)

    return init


def _forget_bias(features: int) -> Callable[..., Array]:
    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        bias = np.zeros(shape, dtype)
        bias[features : 2 * features] = 1.0
        return jax.device_put(bias)

    return init
