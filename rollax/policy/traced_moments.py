"""`TracedMoments` and `TracedReturns`: running statistics inside of compiled functions, in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from rollax.core.running_statistics import LARGEST, RunningMoments
from rollax.policy.running_returns import RunningReturns


class TracedMoments(NamedTuple):
    """Count, mean and variance of rows. `RunningMoments` have a sum of squares instead, which grows with the count."""

    count: Any
    mean: Any
    variance: Any

    @classmethod
    def of(cls, moments: RunningMoments) -> TracedMoments:
        """The current statistics of moments on the host."""
        return cls(*map(np.float32, (moments.count, moments.mean, moments.variance)))

    def with_rows(self, rows: jax.Array, counted: jax.Array) -> TracedMoments:
        """The statistics after adding the rows of [N, ...] for which [N] `counted` is true.

        Source: as `RunningMoments`, divided by the count:
            V = V_a n_a / n + S_b / n + (m_b - m_a)² n_a n_b / n²
        """
        weight = counted.astype(jnp.float32).reshape(-1, *[1] * (rows.ndim - 1))
        new = weight.sum()
        # Distances from the earlier mean are summed, because sums of large numbers are rounded: otherwise an element
        # that never changes would differ from its own mean.
        rows = rows - self.mean
        apart = (rows * weight).sum(axis=0) / jnp.maximum(new, 1)
        squares = ((rows - apart) ** 2 * weight).sum(axis=0)
        count = self.count + new
        share = new / jnp.maximum(count, 1)
        kept = 1 - share
        variance = self.variance * kept + squares / jnp.maximum(count, 1) + apart**2 * kept * share
        return TracedMoments(count, self.mean + apart * share, variance)

    @property
    def deviation(self) -> jax.Array:
        """As `RunningMoments.deviation`."""
        return jnp.where(self.count > 1, jnp.sqrt(self.variance) + 1e-8, 1.0)


class TracedReturns(NamedTuple):
    """`RunningReturns` of R trajectories that run at the same time.

    Args:
        moments: the moments of all sums so far.
        largest: [] the largest magnitude of a sum.
        sums: [R] the latest sum of each trajectory.
    """

    moments: TracedMoments
    largest: Any
    sums: Any

    @classmethod
    def of(
        cls, returns: RunningReturns, slots: NDArray[np.integer], trajectories: NDArray[np.integer]
    ) -> TracedReturns:
        """The current statistics of returns on the host, for [R] slots and the trajectories that run in them."""
        sums = returns.latest(slots, trajectories)
        return cls(TracedMoments.of(returns), np.float32(returns.largest), sums.astype(np.float32))

    def with_rewards(self, rewards: jax.Array, ends: jax.Array, gamma: float) -> TracedReturns:
        """The statistics after T steps, each of which replaces the sum s by γ · s + r and adds it to the moments.

        Args:
            rewards: [R, T] float32.
            ends: [R, T] whether the sum starts again at 0 after the step.
            gamma: γ.
        """

        def step(sums: jax.Array, column: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            reward, end = column
            sums = gamma * sums + reward
            return jnp.where(end, 0.0, sums), sums

        latest, sums = lax.scan(step, self.sums, (rewards.T, ends.T))
        rows = sums.reshape(-1)
        moments = self.moments.with_rows(rows, jnp.ones_like(rows, bool))
        return TracedReturns(moments, jnp.maximum(self.largest, jnp.abs(rows).max()), latest)

    def summary(self) -> dict[str, jax.Array]:
        """As `RunningReturns.summary`."""
        return {"mean": self.moments.mean, "deviation": self.moments.deviation, LARGEST: self.largest}
