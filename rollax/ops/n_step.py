"""n-step targets along sequences of rows."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rollax.ops.masked import check_same_shape


def n_step_targets(
    rewards: Float[Array, "B T"],
    discounts: Float[Array, "B T"],
    acted: Float[Array, "B T"],
    values: Float[Array, "B T K"],
    n: int,
) -> Float[Array, "B T K"]:
    """Returns the target of each step over n steps, or fewer at the end of the sequence.

    Source: Sutton (1988), "Learning to predict by the methods of temporal differences", by the recursion
        y_t^0 = V_t,  y_t^n = r_t + γ_t y_{t+1}^{n-1};  V_{t+1} in the place of y if row t+1 is a bootstrap row.

    Args:
        rewards: [B, T] r.
        discounts: [B, T] γ; 0 where a step terminated.
        acted: [B, T] 1 for a step, 0 for a bootstrap row or padding.
        values: [B, T, K] V, greedy values of the rows, K per row.
        n: number of steps, at least 1.
    Returns:
        [B, T, K] targets; constant. They are undefined for rows without a step, and for a last row that is not
        terminated.
    Raises:
        ShapeError: `rewards`, `discounts` and `acted` differ in shape.
    """
    check_same_shape("n_step_targets", rewards=rewards, discounts=discounts, acted=acted)
    goes_on = _later(acted)[..., None] > 0
    next_values = _later(values)
    targets = values
    for _ in range(n):
        following = jnp.where(goes_on, _later(targets), next_values)
        targets = rewards[..., None] + discounts[..., None] * following
    return lax.stop_gradient(targets)


def _later(x: Array) -> Array:
    """Returns the successor of each row; zeros after the last."""
    return jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], axis=1)
