"""Targets and losses of off-policy actors and critics."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from rollax.ops import check_same_shape
from rollax.ops.mean_over_rows import masked_mean


def td_target(
    rewards: Float[Array, "B"], discounts: Float[Array, "B"], next_values: Float[Array, "B"]
) -> Float[Array, "B"]:
    """Returns the target of an action value, over one or n steps.

    Source: Lillicrap et al. (2016), section 3, arXiv:1509.02971:  y = r + γ Q⁻(s', π⁻(s')).

    Args:
        rewards: [B] r; for n steps, the discounted sum of the rewards.
        discounts: [B] factor of the next value: γ^n, or 0 after a termination.
        next_values: [B] value of the next observation.
    Returns:
        [B] y; constant.
    """
    check_same_shape("td_target", rewards=rewards, discounts=discounts, next_values=next_values)
    return lax.stop_gradient(rewards + discounts * next_values)


def smoothed_actions(
    actions: Float[Array, "*S"], noise: Float[Array, "*S"], *, scale: float, limit: float
) -> Float[Array, "*S"]:
    """Returns actions plus clipped noise, for targets that are smooth in the action.

    Source: Fujimoto et al. (2018), Eq. 14 and Algorithm 1, arXiv:1802.09477:
        ã = clip(π⁻(s') + clip(σ ε, -c, c), -1, 1).

    Args:
        actions: in [-1, 1].
        noise: ε, standard normal.
        scale: σ.
        limit: c.
    """
    check_same_shape("smoothed_actions", actions=actions, noise=noise)
    return jnp.clip(actions + jnp.clip(scale * noise, -limit, limit), -1.0, 1.0)


def twin_errors(
    values: Float[Array, "N B"], targets: Float[Array, "B"], weights: Float[Array, "B"], mask: Float[Array, "B"]
) -> tuple[Float[Array, ""], Float[Array, "B"]]:
    """Returns the loss of an ensemble of critics, and the error of each row.

    Source: Fujimoto et al. (2018), Algorithm 1, arXiv:1802.09477:  L = Σ_i mean_b w_b (Q_i(s, a) - y)².
    Deviations: the importance weights and the mask.

    Args:
        values: [N, B] Q_i.
        targets: [B] y. Constant.
        weights: [B] w, of prioritized replay.
        mask: [B] 1 for a real row, 0 for padding.
    Returns:
        [] loss, and [B] the mean absolute error over the critics, for priorities; constant.
    """
    errors = values - lax.stop_gradient(targets)
    loss = masked_mean((errors**2).sum(axis=0) * weights, mask)
    return loss, lax.stop_gradient(jnp.abs(errors).mean(axis=0))


def temperature_loss(
    log_alpha: Float[Array, ""], logp: Float[Array, "B"], target_entropy: Float[Array, "B"], mask: Float[Array, "B"]
) -> Float[Array, ""]:
    """Returns a loss that raises the temperature if the entropy is below the target, and lowers it if above.

    Source: Haarnoja et al. (2018), Eq. 18, arXiv:1812.05905:  J(α) = mean_b -α (log π(a|s) + H̄).  Deviations: the
    factor log α instead of α, as in the authors' code, so that the rate of change does not depend on α.

    Args:
        log_alpha: [] log α; differentiated.
        logp: [B] log-probability of a sampled action, or its expectation. Constant.
        target_entropy: [B] H̄. Constant.
        mask: [B] 1 for a real row, 0 for padding.
    """
    check_same_shape("temperature_loss", logp=logp, target_entropy=target_entropy, mask=mask)
    return -log_alpha * masked_mean(lax.stop_gradient(logp + target_entropy), mask)


def entropy_of_normals(std: float, count: int) -> float:
    """Returns the entropy of n = `count` independent normal numbers of standard deviation σ: ½ n log(2πe σ²).

    Source: Kim et al. (2026), arXiv:2604.04539.
    """
    return 0.5 * count * math.log(2 * math.pi * math.e * std**2)


def reward_scale(
    deviation: Float[Array, ""], largest: Float[Array, ""], *, limit: float, epsilon: float = 1e-8
) -> Float[Array, ""]:
    """Returns the number by which rewards are divided, so that their discounted sums stay within ±limit.

    Source: Lee et al. (2025), "SimBaV2", arXiv:2502.15280:  max(std(R), max|R| / limit), for the discounted sums R of
        the rewards so far.

    Args:
        deviation: [] standard deviation of R.
        largest: [] max|R|.
        limit: the largest magnitude of a value that critics represent.
        epsilon: the least scale.
    """
    return lax.stop_gradient(jnp.maximum(jnp.maximum(deviation, largest / limit), epsilon))
