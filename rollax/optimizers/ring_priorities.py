"""`RingPriorities`: draws from a `Ring` in proportion to a power of the last errors, on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.core.stored_values import read_array, read_number, wrong_value
from rollax.optimizers.ring import Ring


class Priorities(NamedTuple):
    """Priorities of the steps of a ring.

    Args:
        powers: [C, R] p^α of each step and trajectory.
        largest: [] the largest p so far.
    """

    powers: Any
    largest: Any


@dataclass(frozen=True)
class RingPriorities:
    """Pure functions of `Priorities`, which draw as `PrioritizedReplay` does.

    Source: Schaul et al. (2016), arXiv:1511.05952; see `PrioritizedReplay` for the equations and deviations. Sums are
    of float32.

    Args:
        ring: the ring of the rows.
        places: R, the number of trajectories that run at a time.
        alpha, beta, eps: α, β and ε.
    """

    ring: Ring
    places: int
    alpha: float
    beta: float
    eps: float

    @classmethod
    def of(cls, ring: Ring, places: int, config: Any) -> RingPriorities | None:
        """The priorities for a config; None if rows are drawn uniformly."""
        if not config.prioritized_replay:
            return None
        settings = (getattr(config, f"prioritized_replay_{name}") for name in ("alpha", "beta", "eps"))
        return cls(ring, places, *settings)

    def empty(self) -> Priorities:
        """The priorities before the first step."""
        return Priorities(jnp.zeros((self.ring.steps, self.places), jnp.float32), jnp.float32(1))

    def draw(self, rng: np.random.Generator, count: int, size: int) -> np.ndarray:
        """[size] random numbers for `drawn`: one in each of `count` equal parts of [0, 1), shuffled, then zeros."""
        numbers = np.zeros(size, np.float32)
        numbers[:count] = (rng.permutation(count) + rng.random(count)) / max(count, 1)
        return numbers

    def stored(self, priorities: Priorities, taken: int) -> dict[str, Any]:
        """The arrays and numbers for a checkpoint."""
        powers = np.asarray(priorities.powers)[: min(taken, self.ring.steps)]
        return {"priorities": powers, "largest_priority": float(priorities.largest), "alpha": self.alpha}

    def restored(self, state: Mapping[str, Any], taken: int, where: str) -> Priorities:
        """The priorities that `stored` returned; all are the largest so far if the state has none.

        Raises:
            CheckpointError: the priorities do not fit.
        """
        kept, powers = min(taken, self.ring.steps), np.zeros((self.ring.steps, self.places), np.float32)
        defaults = {"largest_priority": 1.0, "alpha": self.alpha}
        largest, alpha = (read_number({**defaults, **state}, name, where) for name in defaults)
        powers[:kept] = largest**self.alpha
        if "priorities" in state and alpha > 0:
            shape = kept, self.places
            found = read_array(state, "priorities", where, shape=shape, dtype=np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                powers[:kept] = found ** (self.alpha / alpha)
        if not (np.isfinite(powers).all() and (powers >= 0).all()):
            raise wrong_value(
                f"{where}: priorities", "numbers that are negative or not finite", "numbers of at least 0"
            )
        return Priorities(jnp.asarray(powers), jnp.float32(largest))

    # Traced by JAX.

    def put(self, priorities: Priorities, steps: int, taken: Any) -> Priorities:
        """The priorities after new steps, of which the first has the number `taken`: they get the largest so far."""
        new = jnp.full((steps, self.places), priorities.largest**self.alpha)
        at = taken % self.ring.steps
        return priorities._replace(powers=lax.dynamic_update_slice_in_dim(priorities.powers, new, at, 0))

    def drawn(
        self, priorities: Priorities, numbers: Any, count: Any, taken: Any, first: Any = 0
    ) -> tuple[Any, Any, Any]:
        """`(steps, trajectories, weights)` [B] of rows after `taken` steps, from the numbers of `draw`.

        Steps before the step `first` are not drawn. Weights are 1 / P^β, divided by the largest of the first `count`
        rows.
        """
        steps = self.ring.steps
        newest = taken - 1 - (taken - 1 - jnp.arange(steps)) % steps  # the number of the step in each row
        drawable = (newest >= first) & (newest <= taken - self.ring.n_step)
        powers = jnp.where(drawable[:, None], priorities.powers, 0.0).reshape(-1)
        sums = jnp.cumsum(powers)
        at = jnp.searchsorted(lax.cummax(sums), numbers * sums[-1], side="right")
        # If rounding selects a row of priority 0, the last earlier row with a priority counts, else the first such row.
        index = jnp.arange(len(powers))
        before = lax.cummax(jnp.where(powers > 0, index, -1))[jnp.minimum(at, len(powers) - 1)]
        at = jnp.where(before >= 0, before, jnp.argmax(powers > 0))
        weights = powers[at] ** -self.beta
        weights /= jnp.where(jnp.arange(len(at)) < count, weights, 0.0).max(initial=1e-30)
        return newest[at // self.places], at % self.places, weights

    def updated(self, priorities: Priorities, at: Any, errors: Any, count: Any) -> tuple[Priorities, Any]:
        """The priorities after updates, and whether all are finite.

        Args:
            at: [B], [B] steps and trajectories of the drawn rows.
            errors: [B] their TD errors; of a row that was drawn twice, the last one counts.
            count: the first `count` rows were learned from.
        """
        rows, places = at[0] % self.ring.steps, at[1]
        index, learned = jnp.arange(len(rows)), jnp.arange(len(rows)) < count
        last = jnp.full(priorities.powers.shape, -1).at[rows, places].max(jnp.where(learned, index, -1))
        counts = learned & (last[rows, places] == index)
        sizes = jnp.abs(errors) + self.eps
        new = sizes**self.alpha
        powers = priorities.powers.at[jnp.where(counts, rows, self.ring.steps), places].set(new, mode="drop")
        largest = jnp.maximum(priorities.largest, jnp.where(learned, sizes, 0.0).max())
        return Priorities(powers, largest), jnp.isfinite(jnp.where(learned, new, 0.0)).all()
