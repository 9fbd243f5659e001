"""Loss and explained variance of a value function, and advantages in JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from rollax.ops import check_same_shape
from rollax.ops.mean_over_rows import masked_mean

_RELATIVE_ROUNDING = 1e-6


def value_loss(
    values: Float[Array, "B *H"],
    targets: Float[Array, "B *H"],
    mask: Float[Array, "B"],
    *,
    vf_clip_param: float | Array | None = None,
    weights: Float[Array, "B"] | float = 1.0,
) -> Float[Array, ""]:
    """Returns the squared error of the values, bounded per row and averaged over the valid rows, summed over heads.

    Source: Schulman et al. (2017), Eq. 9 (the term L^VF), arXiv:1707.06347, with RLlib's limit c:
        L = mean_t w_t min((V_t - G_t)², c)
    Deviations: the limit, the mask and the weights.

    Args:
        values: [B] predicted values V_t, or [B, H] of H heads.
        targets: value targets G_t of the same shape. Constant.
        mask: [B] 1 for a real row, 0 for padding.
        vf_clip_param: c > 0, in units of squared returns; None: no limit.
        weights: [B] w_t, importance weights. Constant.
    Returns:
        [] loss; its gradient in `values` is zero where the limit binds.
    """
    if values.ndim == np.ndim(targets) == 2:
        of_head = partial(value_loss, vf_clip_param=vf_clip_param, weights=weights)
        return jax.vmap(of_head, in_axes=(1, 1, None))(values, targets, mask).sum()
    check_same_shape("value_loss", values=values, targets=targets, mask=mask)
    errors = jnp.where(mask > 0, values - lax.stop_gradient(targets), 0.0) ** 2
    bounded = errors if vf_clip_param is None else jnp.minimum(errors, vf_clip_param)
    return masked_mean(weights * bounded, mask)


def explained_variance(
    targets: Float[Array, "B *H"], predictions: Float[Array, "B *H"], mask: Float[Array, "B"]
) -> Float[Array, ""]:
    """Returns the fraction of the targets' variance that the predictions explain, over the valid rows; always finite.

    For several value heads it is the mean over the heads.

    Source: ev = 1 - Var[G - V] / Var[G]; it is 1 for predictions that are perfect up to a constant offset, 0 for a
    constant prediction, and has no lower bound. Deviations: if the targets are constant (up to float32 rounding), ev is
    1 if the errors are constant too, else 0, as in scikit-learn.

    Args:
        targets: [B] G, or [B, H] of H heads.
        predictions: V, of the same shape.
        mask: [B] 1 for a real row, 0 for padding.
    Returns:
        [] ev <= 1.
    """
    if targets.ndim == np.ndim(predictions) == 2:
        return jax.vmap(explained_variance, in_axes=(1, 1, None))(targets, predictions, mask).mean()
    check_same_shape("explained_variance", targets=targets, predictions=predictions, mask=mask)
    unexplained, total = _masked_variance(targets - predictions, mask), _masked_variance(targets, mask)
    constant = total == 0
    return jnp.where(
        constant, jnp.where(unexplained == 0, 1.0, 0.0), 1.0 - unexplained / jnp.where(constant, 1.0, total)
    )


def _masked_variance(x: Float[Array, "B"], mask: Float[Array, "B"]) -> Float[Array, ""]:
    """Returns the variance over the valid rows; exactly 0 for differences within rounding."""
    variance = masked_mean((x - masked_mean(x, mask)) ** 2, mask)
    rounding = _RELATIVE_ROUNDING**2 * masked_mean(x**2, mask)
    return jnp.where(variance <= rounding, 0.0, variance)


def traced_advantages(
    rewards: Float[Array, "R T"],
    values: Float[Array, "R T"],
    next_values: Float[Array, "R T"],
    terminated: Bool[Array, "R T"],
    over: Bool[Array, "R T"],
    *,
    gamma: float,
    lambda_: float,
) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
    """Returns generalized advantage estimates and value targets, as `generalized_advantages` does.

    Source: Schulman et al. (2016), Eq. 11-16, arXiv:1506.02438.

    Args:
        rewards: r_t of R trajectories.
        values: V(s_t).
        next_values: V(s_{t+1}) of the observation after the step; where an episode ends, of its final observation.
        terminated: whether the episode terminated with the step, after which values count as 0.
        over: whether the episode ended with the step, terminated or truncated.
        gamma: γ in [0, 1].
        lambda_: λ in [0, 1].
    """
    errors = rewards + gamma * jnp.where(terminated, 0.0, next_values) - values

    def before(following: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        error, ends = step
        advantage = error + gamma * lambda_ * jnp.where(ends, 0.0, following)
        return advantage, advantage

    _, advantages = lax.scan(before, jnp.zeros_like(errors[:, 0]), (errors.T, over.T), reverse=True, unroll=8)
    return advantages.T, advantages.T + values


def traced_standardized(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns numbers with mean 0 and standard deviation 1, as `standardized`; 0 for differences within rounding."""
    centred = x - x.mean()
    deviation = jnp.sqrt(jnp.square(centred).mean())
    within_rounding = deviation <= _RELATIVE_ROUNDING * jnp.abs(x).max()
    return jnp.where(within_rounding, 0.0, centred / (deviation + 1e-8))
