"""`GTrXL`: a gated transformer over sequences, with a memory of earlier rows."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from rollax.models.config import ModelConfig
from rollax.models.layers import HIDDEN_GAIN, dense, orthogonal
from rollax.models.outputs import State

_HIDDEN = -1e30  # the attention score of a row that gets no attention


class GTrXL(nnx.Module):
    """Transformer layers that attend to the last M rows of the same trajectory, from F `in_features` to D `features`.

    Source: Parisotto et al. (2020), "Stabilizing Transformers for Reinforcement Learning" (GTrXL with GRU gates),
        arXiv:1910.06764, section 3.2 and appendix C.3. A layer computes, with the memory m of its M last inputs,
            y = gate(x, ReLU(attention(LayerNorm([m, x])))),  out = gate(y, ReLU(MLP(LayerNorm(y)))).
        The memory has no gradient. Row t attends to itself and to M rows before it, with relative positions as in
        Transformer-XL (Dai et al., 2019, arXiv:1901.02860, section 3.3).

    The state is one array for each sequence: the flattened inputs [L, M, D] of all L layers for the last M rows, and
    the number of rows so far, at most M.
    """

    def __init__(self, in_features: int, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.features, self.memory = config.attention_dim, config.attention_memory
        self.input = dense(in_features, self.features, gain=HIDDEN_GAIN, rngs=rngs)
        units = config.attention_num_transformer_units
        self.layers = nnx.List([GatedLayer(config, rngs=rngs) for _ in range(units)])

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory: zeros, without the axis of sequences."""
        return (np.zeros(len(self.layers) * self.memory * self.features + 1, np.float32),)

    def __call__(self, x: Float[Array, "BT F"], state: State) -> tuple[Float[Array, "BT D"], State]:
        packed = jnp.asarray(state[0])
        sequences = packed.shape[0]
        memories = lax.stop_gradient(packed[:, :-1]).reshape(sequences, len(self.layers), self.memory, self.features)
        present = packed[:, -1]
        rows = self.input(x).reshape(sequences, -1, self.features)
        later = []
        for number, layer in enumerate(self.layers):
            seen = jnp.concatenate([memories[:, number], rows], axis=1)
            later.append(seen[:, -self.memory :])
            rows = layer(rows, seen, present)
        present = jnp.minimum(present + rows.shape[1], self.memory)
        packed = jnp.concatenate([jnp.stack(later, axis=1).reshape(sequences, -1), present[:, None]], axis=1)
        return rows.reshape(-1, self.features), (packed,)


class GatedLayer(nnx.Module):
    """Attention, then two dense layers, with gates in the place of residual connections."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width, inner = config.attention_dim, config.attention_position_wise_mlp_dim
        bias = config.attention_init_gru_gate_bias
        self.attention_norm = nnx.LayerNorm(width, rngs=rngs)
        heads = config.attention_num_heads, config.attention_head_dim
        self.attention = RelativeAttention(width, *heads, config.attention_memory, rngs=rngs)
        self.attention_gate = Gate(width, bias, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = dense(width, inner, gain=HIDDEN_GAIN, rngs=rngs)
        self.output = dense(inner, width, gain=HIDDEN_GAIN, rngs=rngs)
        self.mlp_gate = Gate(width, bias, rngs=rngs)

    def __call__(
        self, rows: Float[Array, "B T D"], seen: Float[Array, "B S D"], present: Float[Array, "B"]
    ) -> Float[Array, "B T D"]:
        attended = self.attention(self.attention_norm(seen), rows.shape[1], present)
        rows = self.attention_gate(rows, jax.nn.relu(attended))
        inner = self.output(jax.nn.relu(self.hidden(self.mlp_norm(rows))))
        return self.mlp_gate(rows, jax.nn.relu(inner))


class RelativeAttention(nnx.Module):
    """Attention of T rows to themselves and to M rows before each of them, with relative positions.

    Source: Dai et al. (2019), arXiv:1901.02860, section 3.3: the score of row t for the row d steps before it is
        ((q_t + u)ᵀ k_{t-d} + (q_t + v)ᵀ W r_d) / √K, for heads of width K; r_d are sines and cosines; W, u and v are
        trained.
    """

    def __init__(self, width: int, heads: int, head_width: int, memory: int, *, rngs: nnx.Rngs) -> None:
        self.heads, self.head_width, self.memory = heads, head_width, memory
        inner = heads * head_width
        kernels = {"kernel_init": orthogonal(1.0), "use_bias": False, "rngs": rngs}
        self.query = nnx.Linear(width, inner, **kernels)
        self.key_and_value = nnx.Linear(width, 2 * inner, **kernels)
        self.position = nnx.Linear(width, inner, **kernels)
        self.output = nnx.Linear(inner, width, **kernels)
        self.content_bias = nnx.Param(jax.device_put(np.zeros((heads, head_width), np.float32)))
        self.position_bias = nnx.Param(jax.device_put(np.zeros((heads, head_width), np.float32)))

    def __call__(self, seen: Float[Array, "B S D"], count: int, present: Float[Array, "B"]) -> Float[Array, "B T D"]:
        """Attention of the last `count` rows; of the M rows before them, only the last `present` rows are real."""
        query = self._by_head(self.query(seen[:, -count:]))
        keys, values = (self._by_head(part) for part in jnp.split(self.key_and_value(seen), 2, axis=-1))
        positions = jnp.asarray(_waves(self.memory + 1, seen.shape[-1]))
        positions = self.position(positions).reshape(-1, self.heads, self.head_width)
        contents = jnp.einsum("bthk,bshk->bhts", query + self.content_bias[...], keys)
        distance = np.arange(count)[:, None] + self.memory - np.arange(self.memory + count)
        positions = positions[distance.clip(0, self.memory)]
        by_position = jnp.einsum("bthk,tshk->bhts", query + self.position_bias[...], positions)
        near = (distance >= 0) & (distance <= self.memory)
        known = np.arange(self.memory + count) >= self.memory - present[:, None]
        scores = (contents + by_position) / math.sqrt(self.head_width)
        weights = jax.nn.softmax(jnp.where(near & known[:, None, None], scores, _HIDDEN), axis=-1)
        attended = jnp.einsum("bhts,bshk->bthk", weights, values)
        return self.output(attended.reshape(*attended.shape[:2], -1))

    def _by_head(self, x: Float[Array, "B T HK"]) -> Float[Array, "B T H K"]:
        return x.reshape(*x.shape[:2], self.heads, self.head_width)


class Gate(nnx.Module):
    """A GRU's gate between the input x and the output y of a layer; the initial `bias` favours x.

    Source: Parisotto et al. (2020), section 3.2: r = σ(W_r y + U_r x), z = σ(W_z y + U_z x - b),
        n = tanh(W_n y + U_n (r ⊙ x)), out = (1 - z) ⊙ x + z ⊙ n.
    """

    def __init__(self, width: int, bias: float, *, rngs: nnx.Rngs) -> None:
        kernels = {"kernel_init": orthogonal(1.0), "use_bias": False, "rngs": rngs}
        self.from_output = nnx.Linear(width, 3 * width, **kernels)
        self.from_input = nnx.Linear(width, 2 * width, **kernels)
        self.from_reset = nnx.Linear(width, width, **kernels)
        self.bias = nnx.Param(jax.device_put(np.full(width, bias, np.float32)))

    def __call__(self, x: Float[Array, "B T D"], y: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        r, z, n = jnp.split(self.from_output(y), 3, axis=-1)
        r_of_input, z_of_input = jnp.split(self.from_input(x), 2, axis=-1)
        r = jax.nn.sigmoid(r + r_of_input)
        z = jax.nn.sigmoid(z + z_of_input - self.bias[...])
        return (1 - z) * x + z * jnp.tanh(n + self.from_reset(r * x))


def _waves(count: int, width: int) -> np.ndarray:
    """[count, width] sines and cosines of the positions from 0 on, of wavelengths from 2π to 20,000π."""
    angles = np.arange(count)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)
