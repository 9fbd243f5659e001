"""The layers of SimBa: `ResidualMLP`, residual blocks of dense layers, and `RunningNorm`, which standardizes inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import core, lax
from jaxtyping import Array, Float

from rollax.models.config import Activation, Normalization
from rollax.models.features import BLOCK_WIDENING
from rollax.models.layers import ACTIVATIONS, dense, make_norms, zeros_init


def he_normal(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Returns normal numbers of variance 2 / inputs: an initializer for the kernel of a layer before a relu.

    Source: He et al. (2015), Eq. 10, arXiv:1502.01852. Deviations: as for `orthogonal`, NumPy draws the numbers.
    """
    deviation = math.sqrt(2 / shape[0])
    if isinstance(key, core.Tracer):
        return deviation * jax.random.normal(key, tuple(shape), dtype)
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    return jax.device_put((deviation * random.standard_normal(tuple(shape))).astype(dtype))


class RunningNorm(nnx.Module):
    """(x - μ) / √(σ² + ε), within ±10, with the running mean μ and variance σ² of the rows in updates, for F features.

    Statistics are constant in gradients.

    Source: Lee et al. (2025), "SimBa", section 4 (RSNorm), arXiv:2410.09754. Deviations: the statistics are over the
    rows of updates, which a replay buffer may return several times, not over the sampled rows; after `horizon` calls
    older rows count less; and the outputs are clipped.

    Args:
        epsilon: added to the variance.
        horizon: K; the rows of the n-th call have the weight 1 / n in the new statistics, but at least 1 / K.
    """

    limit = 10.0

    def __init__(self, features: int, *, epsilon: float = 1e-8, horizon: int = 1000) -> None:
        self.epsilon, self.horizon = epsilon, horizon
        self.mean = nnx.BatchStat(jax.device_put(np.zeros(features, np.float32)))
        self.var = nnx.BatchStat(jax.device_put(np.ones(features, np.float32)))
        self.calls = nnx.BatchStat(jax.device_put(np.int32(0)))
        self.use_running_average = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B F"]:
        mean, variance = self.mean[...], self.var[...]
        if not self.use_running_average:
            calls = jnp.minimum(self.calls[...] + 1, self.horizon)
            rows = lax.stop_gradient(x)
            share, apart = 1 / calls, rows.mean(axis=0) - mean
            mean = mean + share * apart
            variance = (1 - share) * (variance + share * apart**2) + share * rows.var(axis=0)
            self.mean[...], self.var[...], self.calls[...] = mean, variance, calls
        return jnp.clip((x - mean) * lax.rsqrt(variance + self.epsilon), -self.limit, self.limit)


class ResidualMLP(nnx.Module):
    """A dense layer, and residual blocks x + W₂ f(W₁ N(x)), then N(x), with the activation f and the normalization N.

    Source: Lee et al. (2025), "SimBa", section 4, arXiv:2410.09754, with relu and layer normalization.

    Args:
        widths: the widths F of the blocks, all equal; W₁ N(x) has the width 4 · F.
        normalization: as for `MLP`; batch normalization also normalizes the input; None: N(x) = x.
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
