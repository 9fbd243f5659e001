"""`StateDependentHead`: the inputs of a `StateDependentGaussian` from the hidden features of a policy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from rollax.models.distributions.state_dependent import StateDependentGaussian
from rollax.models.features import POLICY_GAIN
from rollax.models.layers import dense


class StateDependentHead(nnx.Module):
    """Means that are linear in the hidden features, the features, and one trained matrix of log standard deviations.

    Args:
        distribution: the distribution whose inputs the head returns.
        log_std: initial value of the log standard deviations.
        trains_features: whether gradients of the standard deviations flow into the features.
        mean_limit: means are clipped to ± this number; None: they are not clipped.
    """

    def __init__(
        self,
        distribution: StateDependentGaussian,
        *,
        log_std: float,
        trains_features: bool,
        mean_limit: float | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.means = dense(distribution.features, distribution.num_noise, gain=POLICY_GAIN, rngs=rngs)
        self.log_std = nnx.Param(jnp.asarray(np.full(distribution.matrix_size, log_std, np.float32)))
        self.trains_features, self.mean_limit = trains_features, mean_limit

    def __call__(self, hidden: Float[Array, "B F"]) -> Float[Array, "B N"]:
        means = self.means(hidden)
        if self.mean_limit is not None:
            means = jnp.clip(means, -self.mean_limit, self.mean_limit)
        features = hidden if self.trains_features else lax.stop_gradient(hidden)
        log_std = jnp.broadcast_to(self.log_std[...][None], (hidden.shape[0], *self.log_std.shape))
        return jnp.concatenate([means, features, log_std], axis=1)
