"""Weights and losses of imitation: which recorded actions to imitate, and how closely."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rollax.ops import check_same_shape
from rollax.ops.mean_over_rows import masked_mean


def advantage_weights(
    advantages: Float[Array, "B"], *, beta: float | Array, max_weight: float | None = None
) -> Float[Array, "B"]:
    """Returns the weight of each action in exponentially weighted imitation.

    Source: Wang et al. (2018), "Exponentially weighted imitation learning for batched historical data", Eq. 6;
        Kostrikov et al. (2021), Eq. 7, arXiv:2110.06169:  w = min(exp(β A), w_max).

    Args:
        advantages: [B] A; in MARWIL divided by the root c of their mean square. Constant.
        beta: β; 0 weights all actions by 1, which is behaviour cloning.
        max_weight: w_max > 0; None: no limit.
    Returns:
        [B] w; constant.
    """
    exponents = beta * lax.stop_gradient(advantages)
    return jnp.exp(exponents if max_weight is None else jnp.minimum(exponents, math.log(max_weight)))


def moving_mean_square(
    mean_square: Float[Array, ""], advantages: Float[Array, "B"], mask: Float[Array, "B"], *, rate: float
) -> Float[Array, ""]:
    """Returns the moving average c² of the squared advantages, updated by a batch.

    Source: Wang et al. (2018), section 6, and RLlib's MARWIL:  c² ← c² + rate (mean_b A_b² - c²).

    Args:
        mean_square: [] c² before the batch.
        advantages: [B] A. Constant.
        mask: [B] 1 for a real row, 0 for padding.
        rate: the weight of the batch.
    Returns:
        [] c²; constant.
    """
    return lax.stop_gradient(mean_square + rate * (masked_mean(advantages**2, mask) - mean_square))


def expectile_loss(errors: Float[Array, "B"], mask: Float[Array, "B"], *, expectile: float) -> Float[Array, ""]:
    """Returns an asymmetric squared error, whose minimum is an expectile of the targets.

    Source: Newey and Powell (1987), doi:10.2307/1911031; Kostrikov et al. (2021), Eq. 5, arXiv:2110.06169:
        L = mean_b |τ - 1{u_b < 0}| u_b²,  u = target - prediction.

    Args:
        errors: [B] u.
        mask: [B] 1 for a real row, 0 for padding.
        expectile: τ in (0, 1). For ½ the loss is half the squared error, with the mean as minimum; for τ near 1 the
            minimum is near the largest target.
    """
    return masked_mean(jnp.where(errors < 0, 1.0 - expectile, expectile) * errors**2, mask)


def squared_distances(actions: Float[Array, "B *shape"], others: Float[Array, "B *shape"]) -> Float[Array, "B D"]:
    """Returns [B, D], the squared difference of each of the D elements of an action.

    Args:
        actions: [B, ...].
        others: [B, ...].
    """
    check_same_shape("squared_distances", actions=actions, others=others)
    return ((actions - others) ** 2).reshape(actions.shape[0], -1)


def behaviour_regularized_loss(
    values: Float[Array, "B"], distances: Float[Array, "B"], mask: Float[Array, "B"], *, alpha: float
) -> Float[Array, ""]:
    """Returns the loss of a deterministic actor that maximizes a value and stays near the recorded actions.

    Source: Fujimoto and Gu (2021), Eq. 3 and 5, arXiv:2106.06860:
        L = mean_b (-λ Q(s, π(s)) + |π(s) - a|²),  λ = α / mean_b |Q(s, π(s))|, a constant.
    Deviations: the mask.

    Args:
        values: [B] Q(s, π(s)).
        distances: [B] |π(s) - a|²; in the authors' code the mean over an action's elements.
        mask: [B] 1 for a real row, 0 for padding.
        alpha: α; 0 is plain regression of the recorded actions.
    """
    check_same_shape("behaviour_regularized_loss", values=values, distances=distances, mask=mask)
    scale = lax.stop_gradient(masked_mean(jnp.abs(values), mask))
    return masked_mean(distances - alpha / jnp.maximum(scale, 1e-8) * values, mask)
