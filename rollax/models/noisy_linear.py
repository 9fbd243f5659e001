"""`NoisyLinear`: a linear layer that explores by random weights."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class NoisyLinear(nnx.Module):
    """y = (W + Σ ⊙ f(ε_out) f(ε_in)ᵀ) x + b + σ ⊙ f(ε_out), with f(e) = sign(e) √|e| and normal ε.

    Source: Fortunato et al. (2018), section 3 (factorised noise), arXiv:1706.10295; W and b begin uniform in
        ±1/√p, Σ and σ at σ_0/√p, for p inputs. One draw of the noise serves all rows of a call.
    """

    def __init__(self, in_features: int, out_features: int, *, sigma0: float, rngs: nnx.Rngs) -> None:
        bound, scale = 1 / math.sqrt(in_features), sigma0 / math.sqrt(in_features)
        kernel_key, bias_key = jax.random.split(rngs.params())
        shape = (in_features, out_features)
        self.kernel = nnx.Param(jax.random.uniform(kernel_key, shape, minval=-bound, maxval=bound))
        self.bias = nnx.Param(jax.random.uniform(bias_key, (out_features,), minval=-bound, maxval=bound))
        self.kernel_sigma = nnx.Param(jnp.full(shape, scale))
        self.bias_sigma = nnx.Param(jnp.full((out_features,), scale))
        self.rngs = nnx.Rngs(noise=rngs.params())
        self.deterministic = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B Q"]:
        y = x @ self.kernel[...] + self.bias[...]
        if self.deterministic:
            return y
        keys = jax.random.split(self.rngs.noise())
        noise_in, noise_out = (
            _scaled(jax.random.normal(key, (size,))) for key, size in zip(keys, self.kernel.shape, strict=True)
        )
        return y + ((x * noise_in) @ self.kernel_sigma[...]) * noise_out + self.bias_sigma[...] * noise_out


def _scaled(noise: Float[Array, "N"]) -> Float[Array, "N"]:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
