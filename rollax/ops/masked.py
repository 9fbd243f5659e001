"""Reductions over the valid rows of a padded batch."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from rollax.errors import ShapeError


def masked_mean(x: Float[Array, "*S"], mask: Float[Array, "*S"]) -> Float[Array, ""]:
    """Mean over the valid entries; the others, even NaN, affect neither the mean nor its gradient.

    Source: mean = Σ_i m_i x_i / Σ_i m_i. Deviations: 0, not 0/0, if no entry is valid, so that a minibatch of
    padding changes no weights.

    Args:
        x: [...] values.
        mask: [...] 1 for a valid entry, 0 for padding.
    Returns:
        [] mean.
    Raises:
        ShapeError: `x` and `mask` differ in shape.
    """
    check_same_shape("masked_mean", x=x, mask=mask)
    valid = mask > 0
    return jnp.where(valid, x, 0.0).sum() / jnp.maximum(valid.sum(), 1)


def check_same_shape(where: str, **arrays: Array) -> None:
    """Refuses arguments that would broadcast by mistake; runs only at trace time in a compiled function.

    Args:
        where: name of the calling function.
        arrays: its arguments by name.
    Raises:
        ShapeError: two of them differ in shape.
    """
    shapes = {name: jnp.shape(array) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ShapeError(
            f"The arguments of {where} differ in shape.",
            where=where,
            got=", ".join(f"{name} {shape}" for name, shape in shapes.items()),
            expected="one shape for all",
            fix="drop or flatten the extra axis; [B] and [B, 1] are not the same",
        )
