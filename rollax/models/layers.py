"""Dense layers with orthogonal kernels and zero biases, and normalization."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import core
from jaxtyping import Array, Float

from rollax.models.config import Activation, Normalization
from rollax.models.features import HIDDEN_GAIN

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def orthogonal(gain: float) -> Callable[..., Array]:
    """Returns an initializer: `gain` times a random matrix with orthonormal columns (rows, if there are fewer rows).

    Source: Saxe et al. (2013), arXiv:1312.6120. Deviations: NumPy draws the matrix, seeded by the key, because JAX
    compiles a QR decomposition for every shape, about a second per model. The triangular factor is the Cholesky factor
    of the Gram matrix: its diagonal is positive, so the matrix is uniformly distributed. Under a trace (`nnx.vmap`,
    `nnx.eval_shape`) JAX draws other numbers of the same distribution.
    """

    return partial(_orthogonal, gain=gain)


def _orthogonal(key: Array, shape: Sequence[int], dtype: Any = jnp.float32, *, gain: float) -> Array:
    if isinstance(key, core.Tracer):
        return jax.nn.initializers.orthogonal(gain)(key, tuple(shape), dtype)
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    rows, columns = math.prod(shape[:-1]), shape[-1]
    normal = random.standard_normal((max(rows, columns), min(rows, columns)))
    basis = np.linalg.solve(np.linalg.cholesky(normal.T @ normal), normal.T)
    matrix = basis.T if rows >= columns else basis
    # Unlike jnp.asarray, this compiles nothing.
    return jax.device_put((gain * matrix).reshape(shape).astype(dtype))


def zeros_init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Returns zeros; an initializer that compiles nothing, and allocates nothing under a trace."""
    if isinstance(key, core.Tracer):
        return jnp.zeros(shape, dtype)
    return jax.device_put(np.zeros(shape, dtype))


def dense(in_features: int, out_features: int, *, gain: float, rngs: nnx.Rngs) -> nnx.Linear:
    """Returns a linear layer with an orthogonal kernel, times `gain`, and a zero bias."""
    return nnx.Linear(in_features, out_features, kernel_init=orthogonal(gain), bias_init=zeros_init, rngs=rngs)


def make_norms(kind: Normalization | None, widths: Sequence[int], rngs: nnx.Rngs) -> list[nnx.Module]:
    """Returns one normalization layer for each of these widths; an empty list for the kind None."""
    if kind == "layer":
        return [nnx.LayerNorm(width, rngs=rngs) for width in widths]
    if kind == "batch":
        return [nnx.BatchNorm(width, momentum=0.99, rngs=rngs) for width in widths]
    if kind is None:
        return []
    from rollax.models.batch_renorm import BatchRenorm  # loaded only where it is used

    return [BatchRenorm(width) for width in widths]


def normalized_activation(
    x: Array, norm: nnx.Module | None, activation: Callable[[Array], Array], *, norm_first: bool
) -> Array:
    """Returns the outputs of a layer after its activation and its normalization, if any."""
    if norm is None:
        return activation(x)
    normalize: Any = norm
    return activation(normalize(x)) if norm_first else normalize(activation(x))


class MLP(nnx.Module):
    """Dense layers, each followed by the activation and by the normalization, if any (see `model.normalization`).

    With `norm_first` the normalization precedes the activation. With dropout the order is: dense layer, dropout,
    normalization, activation. `features` is the width of the output.
    """

    def __init__(
        self,
        in_features: int,
        hiddens: Sequence[int],
        activation: Activation,
        normalization: Normalization | None = None,
        *,
        norm_first: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        widths = (in_features, *hiddens)
        self.layers = nnx.List([dense(a, b, gain=HIDDEN_GAIN, rngs=rngs) for a, b in itertools.pairwise(widths)])
        # Batch normalization also normalizes the input.
        self.norms = nnx.List(make_norms(normalization, widths[1:] if normalization == "layer" else widths, rngs))
        # Each dropout layer has its own random stream, whose seed is drawn like the initial weights.
        streams = [nnx.Rngs(dropout=rngs.params()) for _ in hiddens] if dropout else []
        self.dropouts = nnx.List([nnx.Dropout(dropout, rngs=stream) for stream in streams])
        self.activation: Activation = activation
        self.norm_first = norm_first or dropout > 0
        self.features = widths[-1]

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B H"]:
        activation, norms = ACTIVATIONS[self.activation], [*self.norms]
        if len(norms) > len(self.layers):
            x = norms.pop(0)(x)
        for layer, norm, drop in itertools.zip_longest(self.layers, norms, self.dropouts):
            x = layer(x) if drop is None else drop(layer(x))
            x = normalized_activation(x, norm, activation, norm_first=self.norm_first)
        return x
