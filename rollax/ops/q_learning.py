"""Targets and losses of Q-learning, for scalar values and distributions of returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rollax.ops import check_same_shape


def chosen(values: Float[Array, "*B A"], actions: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Returns [*B], the entry of each row at its action, an index from 0; NaN for an index out of range."""
    # By itself, JAX counts negative indices from the end; too large ones give NaN.
    places = jnp.where(actions < 0, values.shape[-1], actions)
    return jnp.take_along_axis(values, places[..., None], axis=-1)[..., 0]


def q_target(
    rewards: Float[Array, "B"],
    discounts: Float[Array, "B"],
    next_values: Float[Array, "B A"],
    selector: Float[Array, "B A"],
) -> Float[Array, "B"]:
    """Returns the target of an action value, over one or n steps.

    Source: Mnih et al. (2015), doi:10.1038/nature14236; van Hasselt et al. (2016), arXiv:1509.06461, section
        "Double Q-learning":  y = r + γ Q⁻(s', argmax_a Q(s', a)).  With the target network as selector this is the
        target of DQN:  y = r + γ max_a Q⁻(s', a).

    Args:
        rewards: [B] r; for n steps, the discounted sum of the rewards.
        discounts: [B] factor of the next value: γ^n, or 0 after a termination.
        next_values: [B, A] Q⁻ of the next observation, from the target network.
        selector: [B, A] values that choose the next action; invalid actions have the lowest values.
    Returns:
        [B] y; constant.
    """
    check_same_shape("q_target", rewards=rewards, discounts=discounts)
    check_same_shape("q_target", next_values=next_values, selector=selector)
    best = chosen(next_values, jnp.argmax(selector, axis=-1))
    return lax.stop_gradient(rewards + discounts * best)


def huber(errors: Float[Array, "*S"], *, delta: float = 1.0) -> Float[Array, "*S"]:
    """Returns the Huber loss of each error: quadratic near zero, linear beyond ±δ.

    Source: Huber (1964), doi:10.1214/aoms/1177703732:  ½ e² where |e| <= δ, else δ (|e| - ½ δ).

    Args:
        errors: [*S] e.
        delta: δ > 0.
    """
    size = jnp.abs(errors)
    inside = jnp.minimum(size, delta)
    return 0.5 * inside**2 + delta * (size - inside)


def quantile_huber(
    quantiles: Float[Array, "B M"], targets: Float[Array, "B K"], *, delta: float = 1.0
) -> Float[Array, "B"]:
    """Returns [B], the quantile regression loss of each row, which is least at the quantiles of the targets.

    Source: Dabney et al. (2018), Eq. 10, arXiv:1710.10044, with τ_m = (m - ½) / M and u = y_k - θ_m:
        mean_k mean_m |τ_m - 1{u < 0}| huber(u).  Deviations: the mean over the quantiles, where the paper has the sum.

    Args:
        quantiles: [B, M] θ, in ascending order of τ.
        targets: [B, K] y. Constant.
        delta: the magnitude of the error beyond which the Huber loss is linear.
    """
    count = quantiles.shape[-1]
    fractions = (jnp.arange(count) + 0.5) / count
    errors = lax.stop_gradient(targets)[:, None, :] - quantiles[:, :, None]
    weights = jnp.abs(fractions[:, None] - (errors < 0))
    return (weights * huber(errors, delta=delta)).mean(axis=(1, 2))


def lowest_quantiles(quantiles: Float[Array, "N B M"], dropped: int) -> Float[Array, "B K"]:
    """Returns the pooled quantiles of N critics, without the largest quantiles.

    Source: Kuznetsov et al. (2020), "TQC", section 3, arXiv:2005.04269.

    Args:
        quantiles: [N, B, M] quantiles of each critic.
        dropped: d < M; the N · d largest quantiles of each row are left out.
    Returns:
        [B, N · (M - d)] in ascending order.
    """
    count, rows, each = quantiles.shape
    pooled = jnp.sort(quantiles.transpose(1, 0, 2).reshape(rows, -1), axis=-1)
    return pooled[:, : count * (each - dropped)]


def projected(
    probabilities: Float[Array, "B K"],
    rewards: Float[Array, "B"],
    discounts: Float[Array, "B"],
    support: Float[Array, "K"],
) -> Float[Array, "B K"]:
    """Projects the distribution of r + γ Z onto the atoms of Z.

    Source: Bellemare et al. (2017), Algorithm 1, arXiv:1707.06887:  the probability of clip(r + γ z_j, z_0, z_{K-1})
        is divided between the two neighbouring atoms by linear interpolation.

    Args:
        probabilities: [B, K] probabilities of the atoms of Z.
        rewards: [B] r.
        discounts: [B] factor of Z: γ^n, or 0 after a termination.
        support: [K] the atoms, evenly spaced and increasing.
    Returns:
        [B, K] probabilities; constant.
    Raises:
        ShapeError: `rewards` and `discounts` differ in shape.
    """
    check_same_shape("projected", rewards=rewards, discounts=discounts)
    low, high, last = support[0], support[-1], len(support) - 1
    moved = jnp.clip(rewards[:, None] + discounts[:, None] * support, low, high)
    # Divided by the whole range: the distance of two neighbouring atoms is inexact in float32, and its error adds up.
    places = (moved - low) / (high - low) * last
    # Atom k gets the share max(0, 1 - d) of a moved atom at a distance of d spacings of the atoms.
    distance = jnp.abs(places[:, None, :] - jnp.arange(last + 1)[None, :, None])
    shares = jnp.clip(1.0 - distance, 0.0, 1.0)
    return lax.stop_gradient(jnp.einsum("bkj,bj->bk", shares, probabilities))


def lowest_distribution(probabilities: Float[Array, "N B K"], support: Float[Array, "K"]) -> Float[Array, "B K"]:
    """Returns [B, K]: for each row the distribution with the smallest mean among N critics.

    Source: Fujimoto et al. (2018), Eq. 10, arXiv:1802.09477, for distributions as in Seo et al. (2025), "FastTD3",
        arXiv:2505.22642.

    Args:
        probabilities: [N, B, K] probabilities of the atoms, of N critics.
        support: [K] the atoms.
    """
    lowest = jnp.argmin(probabilities @ support, axis=0)
    return jnp.take_along_axis(probabilities, lowest[None, :, None], axis=0)[0]


def categorical_cross_entropy(target: Float[Array, "B K"], logits: Float[Array, "B K"]) -> Float[Array, "B"]:
    """Returns the cross-entropy of each row, which has the same gradient as the Kullback-Leibler divergence.

    Source: Bellemare et al. (2017), Algorithm 1, arXiv:1707.06887:  -Σ_k m_k log p_k.

    Args:
        target: [B, K] probabilities m. Constant.
        logits: [B, K] logits of p.
    """
    check_same_shape("categorical_cross_entropy", target=target, logits=logits)
    return -(lax.stop_gradient(target) * jax.nn.log_softmax(logits, axis=-1)).sum(-1)


def categorical_entropy(probabilities: Float[Array, "B K"]) -> Float[Array, "B"]:
    """Returns the entropy of the target distribution of each row.

    Cross-entropy minus this entropy is the divergence that Hessel et al. (2018), section "The Integrated Agent",
    arXiv:1710.02298, use as priority:  Σ_k m_k (log m_k - log p_k).

    Args:
        probabilities: [B, K] m; for m = 0, m log m counts as 0.
    """
    return -jax.scipy.special.xlogy(probabilities, probabilities).sum(-1)


def dueling(
    values: Float[Array, "B #K"], advantages: Float[Array, "B A"], valid: Bool[Array, "B A"] | None = None
) -> Float[Array, "B A"]:
    """Returns Q-values from state values and advantages.

    Source: Wang et al. (2016), Eq. 9, arXiv:1511.06581:  Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a').

    Args:
        values: [B, 1] V.
        advantages: [B, A].
        valid: [B, A] the actions a' of the mean, at least one in each row; None: all.
    """
    if valid is None:
        return values + advantages - advantages.mean(axis=1, keepdims=True)
    counted = jnp.where(valid, advantages, 0.0).sum(axis=1, keepdims=True)
    return values + advantages - counted / valid.sum(axis=1, keepdims=True)


def rescaled(values: Float[Array, "*S"], epsilon: float) -> Float[Array, "*S"]:
    """Returns h(x), which compresses large values; `unscaled` is the inverse function.

    Source: Pohlen et al. (2018), "Observe and look further", arXiv:1805.11593, proposition A.2:
        h(x) = sign(x) (√(|x| + 1) - 1) + ε x = x / (√(|x| + 1) + 1) + ε x.

    Args:
        values: [*S] x.
        epsilon: ε >= 0, a lower bound of the slope.
    """
    return values / (jnp.sqrt(jnp.abs(values) + 1) + 1) + epsilon * values


def unscaled(values: Float[Array, "*S"], epsilon: float) -> Float[Array, "*S"]:
    """Returns h⁻¹(x), the inverse of `rescaled`.

    Source: Pohlen et al. (2018), arXiv:1805.11593, proposition A.2:
        h⁻¹(x) = sign(x) (((√(1 + 4ε y) - 1) / (2ε))² - 1),  y = |x| + 1 + ε.
    Deviations: the fraction is written as 2y / (√(1 + 4ε y) + 1), which does not subtract nearly equal numbers.

    Args:
        values: [*S] x.
        epsilon: ε >= 0.
    """
    y = jnp.abs(values) + 1 + epsilon
    return jnp.sign(values) * ((2 * y / (jnp.sqrt(1 + 4 * epsilon * y) + 1)) ** 2 - 1)


def sequence_errors(
    errors: Float[Array, "BT"], mask: Float[Array, "M"], sequences: int, *, eta: float
) -> Float[Array, "B"]:
    """Returns [B], the error of each sequence, for prioritized replay.

    Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning" (R2D2),
        section 2.3:  η max_t |δ_t| + (1 - η) mean_t |δ_t|.

    Args:
        errors: [B·T] δ of the rows of B concatenated sequences.
        mask: [B·T] 1 for a row to learn from, else 0; a sequence in which all rows are 0 has the error 0.
        sequences: B.
        eta: η in [0, 1].
    """
    check_same_shape("sequence_errors", errors=errors, mask=mask)
    learned = mask.reshape(sequences, -1) > 0
    sizes = jnp.where(learned, jnp.abs(errors).reshape(sequences, -1), 0.0)
    return eta * sizes.max(axis=1) + (1 - eta) * sizes.sum(axis=1) / jnp.maximum(learned.sum(axis=1), 1)
