"""`Joint`: the distribution over a Dict or Tuple space, in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax import lax
from jaxtyping import Array

from rollax.models.distributions.composite import Composite


@dataclass(frozen=True)
class Joint(Composite):
    """`Composite` in JAX."""

    def _split(self, columns: Array, widths: Sequence[int]) -> Sequence[Array]:
        return lax.split(columns, widths, axis=1)

    def _concatenated(self, parts: Sequence[Array]) -> Array:
        return lax.concatenate(parts, 1)
