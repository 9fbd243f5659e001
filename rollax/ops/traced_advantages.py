"""Advantages of trajectories of equal length, in JAX: as `rollax.ops.advantages` computes them in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


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
        next_values: V(s_{t+1}) of the observation after the step, before a new episode begins.
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
    """Returns numbers with mean 0 and standard deviation 1, as `standardized` does."""
    centred = x - x.mean()
    return centred / (jnp.sqrt(jnp.square(centred).mean()) + 1e-8)
