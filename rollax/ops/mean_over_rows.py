"""Reductions over the valid rows of a padded batch."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from rollax.ops import check_same_shape


def masked_mean(x: Float[Array, "*S"], mask: Float[Array, "*S"]) -> Float[Array, ""]:
    """Returns the mean over the valid entries, Σ_i m_i x_i / Σ_i m_i; 0 if no entry is valid.

    Padding does not affect gradients, even if it is NaN.

    Args:
        x: [...] values.
        mask: [...] 1 for a valid entry, 0 for padding.
    Raises:
        ShapeError: `x` and `mask` differ in shape.
    """
    check_same_shape("masked_mean", x=x, mask=mask)
    valid = mask > 0
    return jnp.where(valid, x, 0.0).sum() / jnp.maximum(valid.sum(), 1)
