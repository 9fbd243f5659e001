"""`Ring`: the newest transitions of sub-environments that step together, as arrays of JAX on the device.

`RingPriorities`: draws from a ring in proportion to a power of the last errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.core.stored_values import read_array, read_number, wrong_value
from rollax.optimizers.ring_observations import ObservationPairs, ObservationsOnce


class Steps(NamedTuple):
    """T new steps [T, R, ...] of R trajectories that run at a time.

    Args:
        obs: observations that the policy acted on.
        actions: in the scale of the policy.
        rewards: [T, R] float32.
        terminated, truncated: [T, R] whether the episode ended with the step.
        new_obs: the observations after the step; where the episode ended, its last observations.
    """

    obs: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    new_obs: Any


class Rows(NamedTuple):
    """The C steps of a ring: arrays [C, R, ...] as in `Steps`, and the stored observations.

    Args:
        observations: `Pairs` or `Frames`.
    """

    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    observations: Any


@dataclass(frozen=True)
class Ring:
    """Pure functions of `Rows`. The step s since the beginning of a run is in row s modulo `steps`.

    Source: Lin (1992), doi:10.1007/BF00992699; n-step returns: Sutton (1988).

    Args:
        steps: C, the number of steps that are kept.
        n_step: n, the number of rewards before the bootstrapped value.
        gamma: γ, the discount of n-step returns.
        observations: how observations are stored.
    """

    steps: int
    n_step: int
    gamma: float
    observations: ObservationPairs | ObservationsOnce

    def empty(self, like: Steps) -> Rows:
        """Zeros for rows of the shapes and dtypes of `like` [T, R, ...]."""

        def zeros(leaf: Any) -> jax.Array:
            return jnp.zeros((self.steps, *leaf.shape[1:]), leaf.dtype)

        actions, *numbers = jax.tree.map(zeros, [like.actions, like.rewards, like.terminated, like.truncated])
        return Rows(actions, *numbers, observations=self.observations.empty(like.obs))

    def put(self, rows: Rows, new: Steps, taken: jax.Array) -> Rows:
        """The rows after T new steps, of which the first has the number `taken`; traced by JAX.

        T must divide `steps`, and `taken` must be a multiple of T.
        """
        at = taken % self.steps

        def of_steps(all_rows: Any, part: Any) -> Any:
            return jax.tree.map(lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, new, at, 0), all_rows, part)

        over = new.terminated | new.truncated
        return Rows(
            of_steps(rows.actions, new.actions),
            of_steps(rows.rewards, new.rewards),
            of_steps(rows.terminated, new.terminated),
            of_steps(rows.truncated, new.truncated),
            self.observations.put(rows.observations, new.obs, new.new_obs, over, taken),
        )

    def cut(self, rows: Rows, taken: jax.Array) -> Rows:
        """The rows with the last step marked as truncated, for a restart of all episodes; traced by JAX."""
        last = (taken - 1) % self.steps
        over = rows.terminated[last] | rows.truncated[last]
        observations = self.observations.cut(rows.observations, over, taken)
        return rows._replace(truncated=rows.truncated.at[last].set(True), observations=observations)

    def first_drawable(self, taken: int) -> int:
        """The number of the oldest step that is kept after `taken` steps."""
        return max(taken - self.steps, 0)

    def drawable(self, taken: int, rows: Rows | None = None) -> int:
        """The number of steps that can be drawn after `taken` steps, because their n rewards are stored.

        With `rows`, steps without a stored observation are not counted.
        """
        first = self.first_drawable(taken)
        if rows is not None:
            first = max(first, int(self.observations.first_kept(rows.observations)))
        return max(taken - first - self.n_step + 1, 0)

    def transitions(self, rows: Rows, step: jax.Array, place: jax.Array) -> Columns:
        """B transitions from their step numbers [B] and trajectories [B]; traced by JAX.

        Returns:
            `obs`, `actions`; `rewards`, the sum of γ^k · r_k over n steps or up to the end of the episode; `new_obs`,
            the observation after them; `discounts`, γ^m for m steps, 0 where the episode terminated; `weights`, all 1.
        """
        total = jnp.zeros(step.shape, jnp.float32)
        discount, last, running = jnp.ones_like(total), step, jnp.ones(step.shape, bool)
        for ahead in range(self.n_step):
            here = (step + ahead) % self.steps
            last = jnp.where(running, step + ahead, last)
            total += jnp.where(running, discount * rows.rewards[here, place], 0.0)
            over = rows.terminated[here, place]
            discount = jnp.where(running, jnp.where(over, 0.0, discount * self.gamma), discount)
            running &= ~(over | rows.truncated[here, place])
        obs, new_obs = self.observed(rows, step, last, place)
        return {
            SampleBatch.OBS: obs,
            SampleBatch.ACTIONS: jax.tree.map(lambda leaf: leaf[step % self.steps, place], rows.actions),
            SampleBatch.REWARDS: total,
            SampleBatch.NEW_OBS: new_obs,
            SampleBatch.DISCOUNTS: discount,
            SampleBatch.WEIGHTS: jnp.ones_like(total),
        }

    def draw(self, rng: np.random.Generator, taken: int, count: int, places: int) -> np.ndarray:
        """[count, 2] step numbers and trajectories, drawn uniformly from the drawable rows after `taken` steps."""
        index = rng.integers(self.drawable(taken) * places, size=count)
        return np.stack([self.first_drawable(taken) + index // places, index % places], axis=1).astype(np.int32)

    def drawable_steps(self, rows: Rows, step: jax.Array, taken: jax.Array) -> jax.Array:
        """The steps [B] that `draw` returned, with replacements for steps without a stored observation; traced by JAX.

        The replacements are spread evenly over the drawable steps, by Fibonacci hashing.
        """
        first = jnp.maximum(self.observations.first_kept(rows.observations), jnp.maximum(taken - self.steps, 0))
        count = jnp.maximum(taken - self.n_step + 1 - first, 1).astype(jnp.uint32)
        spread = (step.astype(jnp.uint32) * jnp.uint32(2654435769)) % count
        return jnp.where(step >= first, step, first + spread.astype(step.dtype))

    def observed(self, rows: Rows, step: Any, last: Any, place: Any) -> tuple[Any, Any]:
        """The observations before the first and after the last step of B windows; traced by JAX."""
        at = last % self.steps
        over = rows.terminated[at, place] | rows.truncated[at, place]
        return self.observations.read(rows.observations, step, last, over, place)

    def bytes_of(self, like: Steps) -> int:
        """Bytes of all rows."""
        return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(self._shapes(like)))

    def _shapes(self, like: Steps) -> Rows:
        return jax.eval_shape(self.empty, like)

    def _in_use(self, rows: Rows, taken: int) -> list[Any]:
        """For each array, the indices of its rows that are in use; `...` for all."""
        kept = np.arange(min(taken, self.steps))
        of_steps = jax.tree.map(lambda _: kept, rows._replace(observations=()))
        return jax.tree.leaves(of_steps._replace(observations=self.observations.in_use(rows.observations, taken)))

    def stored(self, rows: Rows, taken: int) -> dict[str, Any]:
        """The arrays for a checkpoint, in NumPy: the rows in use only."""
        arrays = zip(jax.tree.leaves(rows), self._in_use(rows, taken), strict=True)
        return {f"{number}": np.asarray(leaf)[used] for number, (leaf, used) in enumerate(arrays)}

    def restored(self, like: Steps, state: Mapping[str, Any], taken: int, where: str) -> Rows:
        """The rows that `stored` returned after `taken` steps; CheckpointError unless they fit `like` [T, R, ...]."""
        leaves, tree = jax.tree.flatten(self._shapes(like))
        filled = []
        for number, (leaf, used) in enumerate(zip(leaves, self._in_use(tree.unflatten(leaves), taken), strict=True)):
            shape = leaf.shape if used is ... else (len(used), *leaf.shape[1:])
            array = np.zeros(leaf.shape, leaf.dtype)
            array[used] = read_array(state, f"{number}", where, shape=shape, dtype=leaf.dtype)
            filled.append(jnp.asarray(array))
        return tree.unflatten(filled)


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
