"""`BatchRenorm`: batch normalization that differs little between training and evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float


class BatchRenorm(nnx.Module):
    """Batch normalization whose outputs in training stay near the outputs in evaluation.

    Source: Ioffe (2017), Algorithm 1, arXiv:1702.03275: with mean μ_B and standard deviation σ_B of the batch and the
    running μ and σ, the output is γ x̂ + β, where
        x̂ = (x - μ_B) / σ_B · r + d,  r = clip(σ_B / σ, 1 / r_max, r_max),  d = clip((μ_B - μ) / σ, -d_max, d_max),
    and no gradient flows through r and d. In evaluation x̂ = (x - μ) / σ. Deviations, as in CrossQ (Bhatt et al., 2024,
    arXiv:1902.05605): r = 1 and d = 0 in the first `warm_up` training calls, then the full r_max and d_max, which
    the paper reaches gradually; the running variance is stored instead of σ.

    Args:
        momentum: the share of the old running statistics in the new running statistics.
        epsilon: added to variances.
    """

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warm_up: int = 100_000,
    ) -> None:
        self.momentum, self.epsilon, self.r_max, self.d_max, self.warm_up = momentum, epsilon, r_max, d_max, warm_up
        self.scale = nnx.Param(jax.device_put(np.ones(features, np.float32)))
        self.bias = nnx.Param(jax.device_put(np.zeros(features, np.float32)))
        self.mean = nnx.BatchStat(jax.device_put(np.zeros(features, np.float32)))
        self.var = nnx.BatchStat(jax.device_put(np.ones(features, np.float32)))
        self.calls = nnx.BatchStat(jax.device_put(np.int32(0)))
        self.use_running_average = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "*S F"]) -> Float[Array, "*S F"]:
        mean, deviation = self.mean[...], jnp.sqrt(self.var[...] + self.epsilon)
        if self.use_running_average:
            return (x - mean) / deviation * self.scale[...] + self.bias[...]
        rows = tuple(range(x.ndim - 1))
        of_batch, variance = x.mean(axis=rows), x.var(axis=rows)
        of_batch_deviation = jnp.sqrt(variance + self.epsilon)
        warm = self.calls[...] >= self.warm_up
        r = jnp.where(warm, jnp.clip(of_batch_deviation / deviation, 1 / self.r_max, self.r_max), 1.0)
        d = jnp.where(warm, jnp.clip((of_batch - mean) / deviation, -self.d_max, self.d_max), 0.0)
        r, d = lax.stop_gradient((r, d))
        self.mean[...] = self._moved(mean, of_batch)
        self.var[...] = self._moved(self.var[...], variance)
        self.calls[...] = jnp.minimum(self.calls[...] + 1, self.warm_up)
        return ((x - of_batch) / of_batch_deviation * r + d) * self.scale[...] + self.bias[...]

    def _moved(self, running: Array, new: Array) -> Array:
        return self.momentum * running + (1 - self.momentum) * new
