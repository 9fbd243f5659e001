"""`ResidualMLP`: residual blocks of dense layers; `make_mlp`: the hidden layers that a config describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import core
from jaxtyping import Array, Float

from rollax.models.config import Activation, CriticConfig, LayersConfig, Normalization
from rollax.models.features import BLOCK_WIDENING
from rollax.models.layers import ACTIVATIONS, MLP, dense, make_norms, zeros_init


def he_normal(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """An initializer of a kernel before a relu: independent normal numbers of the variance 2 / inputs.

    Source: He et al. (2015), Eq. 10, arXiv:1502.01852. Deviations: as for `orthogonal`, NumPy draws the numbers.
    """
    deviation = math.sqrt(2 / shape[0])
    if isinstance(key, core.Tracer):
        return deviation * jax.random.normal(key, tuple(shape), dtype)
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    return jax.device_put((deviation * random.standard_normal(tuple(shape))).astype(dtype))


class ResidualMLP(nnx.Module):
    """A dense layer, and residual blocks x + W₂ f(W₁ N(x)), then N(x), with the activation f and the normalization N.

    Source: Lee et al. (2025), "SimBa", section 4, arXiv:2410.09754, with relu and layer normalization.

    Args:
        widths: the widths F of the blocks, all equal; W₁ N(x) has the width 4 F.
        normalization: as for `MLP`: batch normalization is also of the input; None: N(x) = x.
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int],
        activation: Activation,
        normalization: Normalization | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.features = features = widths[0]
        self.input = dense(in_features, features, gain=1.0, rngs=rngs)
        self.first = nnx.List([_he_dense(features, BLOCK_WIDENING * features, rngs) for _ in widths])
        self.second = nnx.List([_he_dense(BLOCK_WIDENING * features, features, rngs) for _ in widths])
        normalized = [features] * (len(widths) + 1)
        if normalization != "layer":
            normalized = [in_features, *normalized]
        self.norms = nnx.List(make_norms(normalization, normalized, rngs))
        self.activation: Activation = activation

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B F"]:
        activation, norms = ACTIVATIONS[self.activation], [*self.norms] or [_identity] * (len(self.first) + 1)
        if len(norms) > len(self.first) + 1:
            x = norms.pop(0)(x)
        x = self.input(x)
        for first, second, norm in zip(self.first, self.second, norms, strict=False):
            x = x + second(activation(first(norm(x))))
        return norms[-1](x)


def _he_dense(in_features: int, out_features: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(in_features, out_features, kernel_init=he_normal, bias_init=zeros_init, rngs=rngs)


def _identity(x: Array) -> Array:
    return x


def make_mlp(in_features: int, hiddens: Sequence[int], config: LayersConfig, *, rngs: nnx.Rngs) -> MLP | ResidualMLP:
    """Layers with the activation, normalization and dropout of the config, or residual blocks."""
    if config.residual_blocks and hiddens:
        return ResidualMLP(in_features, hiddens, config.fcnet_activation, config.normalization, rngs=rngs)
    dropout = config.dropout if isinstance(config, CriticConfig) else 0.0
    return MLP(
        *(in_features, hiddens, config.fcnet_activation, config.normalization),
        norm_first=config.normalize_before_activation,
        dropout=dropout,
        rngs=rngs,
    )
