"""Conservative Q-learning: a gap that is positive where unseen actions have higher values than recorded actions."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from rollax.ops import check_same_shape


def discrete_gap(values: Float[Array, "B A"], taken: Float[Array, "B"]) -> Float[Array, "B"]:
    """Returns how far the soft maximum of the values is above the value of the recorded action.

    Source: Kumar et al. (2020), Eq. 4, arXiv:2006.04779:  log Σ_a exp Q(s, a) - Q(s, a_recorded).

    Args:
        values: [B, A] Q; for invalid actions, so low that exp Q is 0.
        taken: [B] Q of the recorded action.
    """
    return logsumexp(values, axis=-1) - taken


def sampled_gap(
    values: Float[Array, "N B S"], log_densities: Float[Array, "B S"], taken: Float[Array, "N B"]
) -> Float[Array, "N B"]:
    """Returns the gap for continuous actions; the integral over actions is estimated from samples.

    Source: Kumar et al. (2020), Eq. 4 and appendix F, arXiv:2006.04779:
        log Σ_j exp(Q(s, a_j) - log μ(a_j)) - Q(s, a_recorded),  a_j ~ μ.
    Deviations: as in the authors' code, the sum is not divided by the number of samples, which adds a constant.

    Args:
        values: [N, B, S] Q of S sampled actions, of N critics.
        log_densities: [B, S] log μ of each action in the distribution that it was drawn from. Constant.
        taken: [N, B] Q of the recorded action.
    """
    check_same_shape("sampled_gap", values=values[0], log_densities=log_densities)
    return logsumexp(values - lax.stop_gradient(log_densities), axis=-1) - taken


def multiplier_loss(
    log_multiplier: Float[Array, ""], gap: Float[Array, ""], *, threshold: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the weight of a gap that is to stay below a threshold, and the loss that adapts the weight.

    Source: Kumar et al. (2020), Eq. 30, arXiv:2006.04779:  min_Q max_{α >= 0} α (gap - τ).
    Deviations: α is the exponential of a parameter, and at most 10⁶, as in the authors' code.

    Args:
        log_multiplier: [] log α; differentiated in the loss.
        gap: [] the mean gap. Constant.
        threshold: τ.
    Returns:
        [] α, constant; and [] -α (gap - τ).
    """
    multiplier = jnp.minimum(jnp.exp(log_multiplier), 1e6)
    return lax.stop_gradient(multiplier), -multiplier * lax.stop_gradient(gap - threshold)
