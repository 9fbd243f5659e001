"""`StateDependentGaussian`: normal numbers whose variances follow from features of the observation (gSDE)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rollax.models.distributions import ActionDistribution
from rollax.models.distributions.gaussian import DiagGaussian

_EPSILON = 1e-6


@dataclass(frozen=True)
class StateDependentGaussian(ActionDistribution):
    """The distribution of μ + φᵀ θ, for F features φ and a matrix θ of independent numbers N(0, σ²).

    Source: generalized state-dependent exploration, Raffin, Kober and Stulp (2021), arXiv:2005.05719: for one action,
    θ is integrated out, so that element d of the action is normal, with mean μ_d and variance Σ_f φ_f² σ_fd² + 1e-6.
    `explored` returns the actions for a matrix θ that several steps have in common.

    `inputs` are D means μ, F features φ, and F · D logarithms of σ.

    Args:
        normals: the distribution of one action, with means and log standard deviations as inputs.
        features: F.
    """

    normals: DiagGaussian
    features: int

    @property
    def bounded(self) -> bool:  # type: ignore[override]  it depends on the normals
        return self.normals.bounded

    @property
    def num_noise(self) -> int:
        return self.normals.num_noise

    @property
    def num_inputs(self) -> int:
        return self.num_noise + self.features + self.matrix_size

    @property
    def matrix_size(self) -> int:
        """F · D, the width of the rows of `matrices`."""
        return self.features * self.num_noise

    def explored(self, inputs: Float[Array, "B N"], matrices: Float[Array, "B M"]) -> Array:
        """Returns the action of each row for its matrix Z of standard normal numbers, with θ = σ ∘ Z."""
        self._check_inputs(inputs)
        self._check("matrices", matrices, (inputs.shape[0], self.matrix_size))
        means, features, deviations = self._split(inputs)
        noise = jnp.einsum("bf,bfd->bd", features, deviations * matrices.reshape(deviations.shape))
        return self.normals.mode(jnp.concatenate([means + noise, jnp.zeros_like(means)], axis=1))

    def _sample(self, inputs: Array, noise: Array) -> Array:
        return self.normals.sample(self._of_normals(inputs), noise)

    def _sample_and_logp(self, inputs: Array, noise: Array) -> tuple[Array, Array]:
        return self.normals.sample_and_logp(self._of_normals(inputs), noise)

    def _mode(self, inputs: Array) -> Array:
        return self.normals.mode(self._of_normals(inputs))

    def _logp(self, inputs: Array, actions: Array) -> Array:
        return self.normals.logp(self._of_normals(inputs), actions)

    def _entropy(self, inputs: Array) -> Array:
        return self.normals.entropy(self._of_normals(inputs))

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        return self.normals.kl(self._of_normals(inputs), self._of_normals(other_inputs))

    def _of_normals(self, inputs: Float[Array, "B N"]) -> Float[Array, "B P"]:
        means, features, deviations = self._split(inputs)
        variances = jnp.einsum("bf,bfd->bd", features**2, deviations**2) + _EPSILON
        return jnp.concatenate([means, 0.5 * jnp.log(variances)], axis=1)

    def _split(self, inputs: Float[Array, "B N"]) -> tuple[Array, Array, Float[Array, "B F D"]]:
        means, features, log_std = lax.split(inputs, (self.num_noise, self.features, self.matrix_size), axis=1)
        return means, features, jnp.exp(log_std).reshape(-1, self.features, self.num_noise)
