"""Layers whose weights have fixed norms, and networks of such layers, with or without inverted residual blocks.

A gradient step changes the norms. `with_unit_norms` restores them for all parameters whose names end in `unit_kernel`,
`unit_scale` or `unit_bias`. Other parameters are not changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jax import core, lax
from jaxtyping import Array, Float

from rollax.models.actor_with_critics import ActionValue
from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import BLOCK_WIDENING
from rollax.models.layers import orthogonal, zeros_init
from rollax.models.outputs import Outputs

_KERNEL, _SCALE, _BIAS = "unit_kernel", "unit_scale", "unit_bias"
_LOG_STD_LOW, _LOG_STD_HIGH = -10.0, 2.0


class UnitLinear(nnx.Module):
    """A linear layer in which the weights of each output have the norm 1; by default it has no bias."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False, rngs: nnx.Rngs) -> None:
        self.unit_kernel = nnx.Param(_unit_columns(rngs.params(), (in_features, out_features)))
        self.bias = nnx.Param(zeros_init(rngs.params(), (out_features,))) if bias else None

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B Q"]:
        y = x @ self.unit_kernel[...]
        return y if self.bias is None else y + self.bias[...]


class UnitBatchNorm(nnx.Module):
    """Batch normalization in which scale and bias together have the norm √F, for F features.

    Args:
        momentum: the share of the old running statistics in the new running statistics.
        epsilon: added to variances.
    """

    def __init__(self, features: int, *, momentum: float = 0.99, epsilon: float = 1e-5) -> None:
        self.momentum, self.epsilon = momentum, epsilon
        self.unit_scale = nnx.Param(jax.device_put(np.ones(features, np.float32)))
        self.unit_bias = nnx.Param(jax.device_put(np.zeros(features, np.float32)))
        self.mean = nnx.BatchStat(jax.device_put(np.zeros(features, np.float32)))
        self.var = nnx.BatchStat(jax.device_put(np.ones(features, np.float32)))
        self.use_running_average = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B F"]:
        mean, variance = self.mean[...], self.var[...]
        if not self.use_running_average:
            old_mean, old_variance = mean, variance
            mean, variance = x.mean(axis=0), x.var(axis=0)
            self.mean[...] = self.momentum * old_mean + (1 - self.momentum) * lax.stop_gradient(mean)
            self.var[...] = self.momentum * old_variance + (1 - self.momentum) * lax.stop_gradient(variance)
        factor = self.unit_scale[...] * lax.rsqrt(variance + self.epsilon)
        return (x - mean) * factor + self.unit_bias[...]


class UnitRMSNorm(nnx.Module):
    """x / √(mean(x²) + ε), times a scale with the norm √F, for F features."""

    def __init__(self, features: int, *, epsilon: float = 1e-6) -> None:
        self.epsilon = epsilon
        self.unit_scale = nnx.Param(jax.device_put(np.ones(features, np.float32)))

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B F"]:
        return x * lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + self.epsilon) * self.unit_scale[...]


class InvertedResidual(nnx.Module):
    """x + relu(BN(W₂ relu(BN(W₁ x)))), where W₁ x is four times as wide as x."""

    def __init__(self, features: int, *, rngs: nnx.Rngs) -> None:
        hidden = BLOCK_WIDENING * features
        self.first, self.second = UnitLinear(features, hidden, rngs=rngs), UnitLinear(hidden, features, rngs=rngs)
        self.first_norm, self.second_norm = UnitBatchNorm(hidden), UnitBatchNorm(features)

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B F"]:
        hidden = jax.nn.relu(self.first_norm(self.first(x)))
        return x + jax.nn.relu(self.second_norm(self.second(hidden)))


class ResidualLayers(nnx.Module):
    """Batch normalization and a linear layer of the input, residual blocks, and RMS normalization.

    Source: Kim et al. (2026), arXiv:2604.04539.

    Args:
        widths: the widths of the blocks; at least one, all equal.
    """

    def __init__(self, in_features: int, widths: Sequence[int], *, rngs: nnx.Rngs) -> None:
        self.features = features = widths[0]
        self.input_norm = UnitBatchNorm(in_features)
        self.input = UnitLinear(in_features, features, rngs=rngs)
        self.blocks = nnx.List([InvertedResidual(features, rngs=rngs) for _ in widths])
        self.output_norm = UnitRMSNorm(features)

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B F"]:
        x = self.input(self.input_norm(x))
        for block in self.blocks:
            x = block(x)
        return self.output_norm(x)


class PlainLayers(nnx.Module):
    """Batch normalization of the input, then relu(BN(W x)) for each layer; the norms of W are fixed, BN is ordinary.

    Source: Palenicek et al. (2025), "XQC", arXiv:2509.25174.

    Args:
        widths: the widths of the layers; at least one.
    """

    def __init__(self, in_features: int, widths: Sequence[int], *, rngs: nnx.Rngs) -> None:
        sizes = (in_features, *widths)
        self.features = widths[-1]
        self.norms = nnx.List([nnx.BatchNorm(size, momentum=0.99, epsilon=1e-3, rngs=rngs) for size in sizes])
        self.layers = nnx.List([UnitLinear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B F"]:
        x = self.norms[0](x)
        for layer, norm in zip(self.layers, [*self.norms][1:], strict=True):
            x = jax.nn.relu(norm(layer(x)))
        return x


class UnitActor(nnx.Module):
    """Means and log standard deviations of continuous actions, from raw observation columns.

    `fcnet_hiddens` are the widths of the residual blocks, or of the plain layers with `residual_blocks=False`. Log
    standard deviations are -10 + 6 (1 + tanh y), in (-10, 2), for the output y of the last layer.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        residual_blocks: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        self.layers = _layers(self.encoder.features, config.fcnet_hiddens, residual_blocks, rngs)
        self.head = UnitLinear(self.layers.features, num_outputs, bias=True, rngs=rngs)

    def __call__(self, obs: Any) -> Outputs:
        mean, y = jnp.split(self.head(self.layers(self.encoder(obs))), 2, axis=-1)
        log_std = _LOG_STD_LOW + 0.5 * (_LOG_STD_HIGH - _LOG_STD_LOW) * (1 + jnp.tanh(y))
        return Outputs(jnp.concatenate([mean, log_std], axis=-1))


class UnitActionValue(ActionValue):
    """`ActionValue` whose hidden layers are residual blocks, or plain layers, of the widths `fcnet_hiddens`."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box,
        config: ModelConfig,
        *,
        outputs: int | None = None,
        residual_blocks: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        self.outputs = outputs
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        in_features = self.encoder.features + int(np.prod(action_space.shape))
        self.mlp = _layers(in_features, config.fcnet_hiddens, residual_blocks, rngs)
        self.head = UnitLinear(self.mlp.features, outputs or 1, bias=True, rngs=rngs)


def _layers(
    in_features: int, widths: Sequence[int], residual_blocks: bool, rngs: nnx.Rngs
) -> ResidualLayers | PlainLayers:
    return (ResidualLayers if residual_blocks else PlainLayers)(in_features, widths, rngs=rngs)


def with_unit_norms(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a model by name, with the fixed norms of the layers of this module.

    Columns of `unit_kernel` [..., P, Q] have the norm 1; `unit_scale` [..., F], together with `unit_bias` if the layer
    has one, has the norm √F. A column or scale of zeros is not changed.
    """
    found = dict(params)
    for name, value in params.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == _KERNEL:
            found[name] = value * _inverse(jnp.square(value).sum(axis=-2, keepdims=True))
        elif leaf == _SCALE:
            partner = f"{layer}.{_BIAS}"
            names = (name, partner) if partner in params else (name,)
            squares = sum(jnp.square(params[each]).sum(axis=-1, keepdims=True) for each in names)
            factor = _inverse(jnp.asarray(squares) / value.shape[-1])
            found.update({each: params[each] * factor for each in names})
    return found


def _inverse(squares: Array) -> Array:
    """Returns 1 / √squares; 1 where `squares` is 0."""
    return lax.rsqrt(jnp.where(squares > 0, squares, 1.0))


def _unit_columns(key: Array, shape: tuple[int, int]) -> Array:
    """Returns an orthogonal matrix, with columns scaled to the norm 1 even if there are fewer rows than columns."""
    kernel = orthogonal(1.0)(key, shape)
    if isinstance(kernel, core.Tracer):
        return kernel / jnp.linalg.norm(kernel, axis=0)
    matrix = np.asarray(kernel)
    return jax.device_put(matrix / np.linalg.norm(matrix, axis=0))  # by NumPy, which compiles nothing
