"""V-trace: value targets and advantages for actions of an older policy."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rollax.ops import check_same_shape


def vtrace(
    log_rhos: Float[Array, "N"],
    discounts: Float[Array, "N"],
    rewards: Float[Array, "N"],
    values: Float[Array, "N"],
    bootstrap: Bool[Array, "N"],
    mask: Float[Array, "N"],
    *,
    clip_rho_threshold: float | Array = 1.0,
    clip_pg_rho_threshold: float | Array = 1.0,
    clip_c_threshold: float | Array = 1.0,
    lambda_: float | Array = 1.0,
) -> tuple[Float[Array, "N"], Float[Array, "N"]]:
    """Returns V-trace targets of the value function and advantages of the policy gradient.

    Source: Espeholt et al. (2018), Eq. 1 and section 4.2, arXiv:1802.01561, in the recursive form of Remark 1:
        v_s = V_s + δ_s + γ_s c_s (v_{s+1} - V_{s+1}),  δ_s = ρ_s (r_s + γ_s V_{s+1} - V_s)
        A_s = ρ'_s (r_s + γ_s (λ v_{s+1} + (1 - λ) V_{s+1}) - V_s)
        with ρ_s = min(ρ̄, π/μ), c_s = λ min(c̄, π/μ) (Remark 2) and ρ'_s = min(ρ̄', π/μ). On-policy, A is GAE(λ).
    Deviations: the paper defines A only for λ = 1. The mixture (λ v_{s+1} + (1 - λ) V_{s+1}) is as in rlax, and equals
        the paper's v_{s+1} for λ = 1.

    Rows are concatenated trajectory segments in time order. A row with discount 0 ends its segment; every other segment
    is followed by a bootstrap row with the next observation. Padding may be anywhere.

    The recursion is a composition of affine maps x ↦ δ + γ c x, which is associative and takes O(log N) steps (Blelloch
    (1990), "Prefix sums and their applications").

    Args:
        log_rhos: [N] log π(a|s) - log μ(a|s), for the evaluated policy π and the behaviour policy μ.
        discounts: [N] γ, or 0 after a termination.
        rewards: [N] r.
        values: [N] V.
        bootstrap: [N] true for a bootstrap row; of its columns only the value is used.
        mask: [N] 1 for a real row, 0 for padding.
        clip_rho_threshold: ρ̄ > 0; the fixed point is the value of π for ρ̄ = ∞, and near the value of μ for ρ̄ near 0.
        clip_pg_rho_threshold: ρ̄' > 0, the bound of the importance weight in the policy gradient.
        clip_c_threshold: c̄ > 0, at most ρ̄; bounds how far a temporal difference propagates back.
        lambda_: λ in [0, 1].
    Returns:
        [N] targets v and [N] advantages A, both constant. For a bootstrap row they are V and 0, for padding 0 and 0.
    """
    check_same_shape(
        "vtrace", log_rhos=log_rhos, discounts=discounts, rewards=rewards, values=values, bootstrap=bootstrap, mask=mask
    )
    real = mask > 0
    learned = real & ~bootstrap
    log_rhos, discounts, rewards = (jnp.where(learned, x, 0.0) for x in (log_rhos, discounts, rewards))
    values = jnp.where(real, values, 0.0)
    following = _next_real_row(real)
    rhos = jnp.exp(log_rhos)
    next_values = _taken(values, following)
    deltas = jnp.minimum(rhos, clip_rho_threshold) * (rewards + discounts * next_values - values)
    carried = discounts * lambda_ * jnp.minimum(rhos, clip_c_threshold)
    # Padding is the identity map; a bootstrap row has discount 0 and starts a new segment.
    surprises = _affine_suffixes(jnp.where(learned, deltas, 0.0), jnp.where(real, carried, 1.0))
    next_mixture = next_values + lambda_ * _taken(jnp.where(real, surprises, 0.0), following)
    advantages = jnp.minimum(rhos, clip_pg_rho_threshold) * (rewards + discounts * next_mixture - values)
    targets = jnp.where(real, values + surprises, 0.0)
    return lax.stop_gradient(targets), lax.stop_gradient(jnp.where(learned, advantages, 0.0))


def _next_real_row(real: Bool[Array, "N"]) -> Int[Array, "N"]:
    """Returns the index of the first real row after each row, or N."""
    rows = len(real)
    at_or_after = lax.cummin(jnp.where(real, jnp.arange(rows), rows), reverse=True)
    return jnp.append(at_or_after, rows)[1:]


def _taken(x: Float[Array, "N"], rows: Int[Array, "N"]) -> Float[Array, "N"]:
    return jnp.append(x, 0.0)[rows]


def _affine_suffixes(terms: Float[Array, "N"], factors: Float[Array, "N"]) -> Float[Array, "N"]:
    """Returns x with x_i = term_i + factor_i x_{i+1}, and 0 after the last row."""

    def composed(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    return lax.associative_scan(composed, (terms, factors), reverse=True)[0]
