"""Policy losses: REINFORCE, PPO's clipped objective and adaptive KL coefficient, APPO's reference policy."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rollax.ops import check_same_shape
from rollax.ops.mean_over_rows import masked_mean

_MAX_LOG_RATIO = 60.0
_LEAST_KL_COEFF = 1e-10


def policy_gradient_loss(
    logp: Float[Array, "B"], advantages: Float[Array, "B"], mask: Float[Array, "B"]
) -> Float[Array, ""]:
    """Returns a loss whose gradient is the negated policy gradient, averaged over the valid rows.

    Source: Williams (1992), REINFORCE; Sutton & Barto (2018), section 13.3:
        L = -mean_t A_t log π(a_t|s_t)
    Deviations: only the mask.

    Args:
        logp: [B] log-probability of the action taken, under the policy being trained.
        advantages: [B] returns or advantage estimates. Constant.
        mask: [B] 1 for a real row, 0 for padding.
    Returns:
        [] loss, with the gradient -A_t / (number of real rows) in `logp`.
    """
    check_same_shape("policy_gradient_loss", logp=logp, advantages=advantages, mask=mask)
    # Padding is replaced before the product: a NaN in a padding row would give 0 * NaN in the gradient.
    return -masked_mean(jnp.where(mask > 0, logp, 0.0) * lax.stop_gradient(advantages), mask)


def clipped_surrogate(
    logp: Float[Array, "B"],
    old_logp: Float[Array, "B"],
    advantages: Float[Array, "B"],
    mask: Float[Array, "B"],
    *,
    clip: float | Array,
) -> Float[Array, ""]:
    """Returns the negated clipped policy objective of PPO, averaged over the valid rows.

    Source: Schulman et al. (2017), Eq. 7, arXiv:1707.06347:
        L = -mean_t min(r_t A_t, clip(r_t, 1 - ε, 1 + ε) A_t),  r_t = exp(logp_t - old_logp_t)
    Deviations: the mask; r_t is at most e^60, because an infinite ratio makes the gradient NaN where the clip binds.
    The caller decides whether to standardize advantages.

    Args:
        logp: [B] log-probability of the action taken, under the policy being trained.
        old_logp: [B] the same under the policy that acted. Constant.
        advantages: [B] advantage estimates. Constant.
        mask: [B] 1 for a real row, 0 for padding.
        clip: ε in (0, 1).
    Returns:
        [] loss; its gradient in `logp` is zero where the clip binds.
    """
    check_same_shape("clipped_surrogate", logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    advantages = lax.stop_gradient(advantages)
    # Padding is replaced before the exponential: an infinity in a padding row would give 0 * inf in the gradient.
    log_ratio = jnp.where(mask > 0, logp - lax.stop_gradient(old_logp), 0.0)
    ratio = jnp.exp(jnp.minimum(log_ratio, _MAX_LOG_RATIO))
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -masked_mean(jnp.minimum(ratio * advantages, clipped * advantages), mask)


def clip_fraction(
    logp: Float[Array, "B"], old_logp: Float[Array, "B"], mask: Float[Array, "B"], *, clip: float | Array
) -> Float[Array, ""]:
    """Returns the share of the valid rows whose probability ratio is outside of [1 - ε, 1 + ε].

    Args:
        logp: [B] log-probability of the action taken, under the policy being trained.
        old_logp: [B] the same under the policy that acted.
        mask: [B] 1 for a real row, 0 for padding.
        clip: ε.
    """
    check_same_shape("clip_fraction", logp=logp, old_logp=old_logp, mask=mask)
    outside = jnp.abs(jnp.exp(logp - old_logp) - 1) > clip
    return lax.stop_gradient(masked_mean(jnp.where(mask > 0, outside, False).astype(logp.dtype), mask))


def adapted_kl_coeff(coeff: float | Array, kl: float | Array, *, target: float | Array) -> Float[Array, ""]:
    """Returns the coefficient β of PPO's KL penalty for the next update.

    Source: Schulman et al. (2017), section 4, arXiv:1707.06347. Deviations: as in RLlib, β ← 1.5 · β if kl > 2 · target
    and β ← β / 2 if kl < target / 2; the paper doubles and halves β, at 1.5 · target and target / 1.5. A positive β
    does not fall below 1e-10, so that it can grow again; 0 stays 0.

    Args:
        coeff: [] β of the last update.
        kl: [] the mean KL(old policy || new policy) of the last update.
        target: [] target of the KL divergence.
    """
    adapted = coeff * jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
    return jnp.maximum(adapted, jnp.minimum(coeff, _LEAST_KL_COEFF))


def truncated_reference(
    target_logp: Float[Array, "B"], behaviour_logp: Float[Array, "B"], *, limit: float = 2.0
) -> Float[Array, "B"]:
    """Returns the reference log-probability of the clipped surrogate for actions of another policy.

    Source: Luo et al. (2020), IMPACT, arXiv:1912.00167: the ratio π / max(π', β μ), with β = 1/limit. The ratio equals
    min(μ/π', limit) π/μ, in which the weight μ/π' of the target policy π' is bounded.

    Args:
        target_logp: [B] log-probability of the action taken, under the target policy π'.
        behaviour_logp: [B] the same under the policy μ that acted.
        limit: the largest weight μ/π'; 2 in RLlib.
    Returns:
        [B] log max(π', μ/limit).
    """
    check_same_shape("truncated_reference", target_logp=target_logp, behaviour_logp=behaviour_logp)
    return jnp.maximum(target_logp, behaviour_logp - math.log(limit))
