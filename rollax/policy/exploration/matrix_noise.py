"""Exploration by normal numbers that are multiplied by features of the observation."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.models.distributions.state_dependent import StateDependentGaussian
from rollax.policy.exploration import FromDistribution


class MatrixNoise(FromDistribution):
    """Draws a matrix of normal numbers for each row; see `StateDependentGaussian.explored`."""

    distribution: StateDependentGaussian

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        return rng.standard_normal((rows, self.distribution.matrix_size), np.float32)

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.distribution.explored(outputs, noise)
