"""`Ring`: the newest transitions of sub-environments that step together, as arrays of JAX on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.core.stored_values import read_array


class Rows(NamedTuple):
    """The arrays of a ring [C, R, ...]: C steps of R trajectories that run at a time, or T new steps [T, R, ...].

    Args:
        obs: observations that the policy acted on.
        actions: in the scale of the policy.
        rewards: [C, R] float32.
        terminated, truncated: [C, R] whether the episode ended with the step.
        new_obs: the observations after the step, the last ones of the episode where it ended.
    """

    obs: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    new_obs: Any


@dataclass(frozen=True)
class Ring:
    """Pure functions of `Rows`. The step s since the beginning of a run is in row s modulo `steps`.

    Source: Lin (1992), doi:10.1007/BF00992699; n-step returns: Sutton (1988).

    Args:
        steps: C, the number of steps that are kept.
        n_step: n, the number of rewards before the bootstrapped value.
        gamma: γ, the discount of n-step returns.
    """

    steps: int
    n_step: int
    gamma: float

    def empty(self, like: Rows) -> Rows:
        """Zeros for rows of the shapes and dtypes of `like` [T, R, ...]."""
        return jax.tree.map(lambda leaf: jnp.zeros((self.steps, *leaf.shape[1:]), leaf.dtype), like)

    def put(self, rows: Rows, new: Rows, taken: jax.Array) -> Rows:
        """The rows after T new steps, of which the first has the number `taken`; traced by JAX.

        T must divide `steps`, and `taken` must be a multiple of T.
        """
        at = taken % self.steps
        return jax.tree.map(lambda all_rows, part: lax.dynamic_update_slice_in_dim(all_rows, part, at, 0), rows, new)

    def cut(self, rows: Rows, taken: int) -> Rows:
        """The rows after a restart of all episodes: no window reaches beyond the last step before it."""
        return rows._replace(truncated=jnp.asarray(rows.truncated).at[(taken - 1) % self.steps].set(True))

    def first_drawable(self, taken: int) -> int:
        """The number of the oldest step that is kept after `taken` steps."""
        return max(taken - self.steps, 0)

    def drawable(self, taken: int) -> int:
        """The number of steps, after `taken` of them, whose n rewards are stored: these can be drawn."""
        return max(taken - self.first_drawable(taken) - self.n_step + 1, 0)

    def transitions(self, rows: Rows, step: jax.Array, place: jax.Array) -> Columns:
        """B transitions from their numbers of steps [B] and trajectories [B]; traced by JAX.

        Returns:
            `obs`, `actions`; `rewards`, the sum of γ^k r_k over n steps or up to the end of the episode; `new_obs`, the
            observation after them; `discounts`, γ^m for m steps, 0 where the episode terminated; `weights`, all 1.
        """
        at = step % self.steps
        total = jnp.zeros(step.shape, jnp.float32)
        discount, last, running = jnp.ones_like(total), at, jnp.ones(step.shape, bool)
        for ahead in range(self.n_step):
            here = (step + ahead) % self.steps
            last = jnp.where(running, here, last)
            total += jnp.where(running, discount * rows.rewards[here, place], 0.0)
            over = rows.terminated[here, place]
            discount = jnp.where(running, jnp.where(over, 0.0, discount * self.gamma), discount)
            running &= ~(over | rows.truncated[here, place])
        return {
            SampleBatch.OBS: jax.tree.map(lambda leaf: leaf[at, place], rows.obs),
            SampleBatch.ACTIONS: jax.tree.map(lambda leaf: leaf[at, place], rows.actions),
            SampleBatch.REWARDS: total,
            SampleBatch.NEW_OBS: jax.tree.map(lambda leaf: leaf[last, place], rows.new_obs),
            SampleBatch.DISCOUNTS: discount,
            SampleBatch.WEIGHTS: jnp.ones_like(total),
        }

    def draw(self, rng: np.random.Generator, taken: int, count: int, places: int) -> np.ndarray:
        """[count, 2] numbers of steps and trajectories, drawn uniformly from the drawable ones after `taken` steps."""
        index = rng.integers(self.drawable(taken) * places, size=count)
        return np.stack([self.first_drawable(taken) + index // places, index % places], axis=1).astype(np.int32)

    @staticmethod
    def bytes_of(like: Rows) -> int:
        """Bytes of one step of all trajectories."""
        return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(like))

    def stored(self, rows: Rows, taken: int) -> dict[str, Any]:
        """The arrays for a checkpoint, in NumPy: the kept steps only."""
        kept = min(taken, self.steps)
        return {f"{number}": np.asarray(leaf)[:kept] for number, leaf in enumerate(jax.tree.leaves(rows))}

    def restored(self, like: Rows, state: Mapping[str, Any], taken: int, where: str) -> Rows:
        """The rows that `stored` returned after `taken` steps; CheckpointError unless they fit `like` [T, R, ...]."""
        leaves, tree = jax.tree.flatten(like)
        kept = min(taken, self.steps)
        arrays = [
            read_array(state, f"{number}", where, shape=(kept, *leaf.shape[1:]), dtype=leaf.dtype)
            for number, leaf in enumerate(leaves)
        ]
        filled = [
            np.concatenate([array, np.zeros((self.steps - kept, *array.shape[1:]), array.dtype)]) for array in arrays
        ]
        return jax.tree.unflatten(tree, map(jnp.asarray, filled))
