"""The observations of a `Ring`: before and after each step, or, where they are large, each one once.

| | small observations, `ObservationPairs` | large ones, `ObservationsOnce` |
| --- | --- | --- |
| before step s | row s | row s |
| after step s | row s of another array | row s + 1; the last one of an episode in a row of its own |
| stack of k | whole | the frames of k steps; early in an episode, copies of its first frame replace missing ones |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.env.stacking import joined, latest

STEPS_PER_END = 4
"""`ObservationsOnce` has room for the last observation of one episode per this number of rows."""


class Pairs(NamedTuple):
    """The observations before and after each step, trees of arrays [C, R, ...]."""

    obs: Any
    new_obs: Any


@dataclass(frozen=True)
class ObservationPairs:
    """Pure functions of `Pairs`.

    Args:
        steps: C, the number of steps that are kept. The step s is in row s modulo C.
    """

    steps: int

    def empty(self, like: Any) -> Pairs:
        """Zeros for observations of the shapes and dtypes of `like` [T, R, ...]."""
        kept = jax.tree.map(lambda leaf: jnp.zeros((self.steps, *leaf.shape[1:]), leaf.dtype), like)
        return Pairs(kept, jax.tree.map(jnp.copy, kept))

    def in_use(self, kept: Pairs, taken: int) -> Any:
        """For each array, the indices of its rows that are in use after `taken` steps; `...` for all."""
        return jax.tree.map(lambda _: np.arange(min(taken, self.steps)), kept)

    # Traced by JAX.

    def put(self, kept: Pairs, obs: Any, new_obs: Any, over: jax.Array, taken: jax.Array) -> Pairs:
        """The observations after T new steps, of which the first has the number `taken`.

        Args:
            kept: the observations of earlier steps.
            obs, new_obs: [T, R, ...] the observations before and after the new steps.
            over: [T, R] whether an episode ended with the step.
            taken: the number of the first new step.
        """
        at = taken % self.steps
        return jax.tree.map(
            lambda rows, new: lax.dynamic_update_slice_in_dim(rows, new, at, 0), kept, Pairs(obs, new_obs)
        )

    def cut(self, kept: Pairs, over: jax.Array, taken: jax.Array) -> Pairs:
        """`kept` after `taken` steps and a restart of all episodes.

        `over` [R]: whether the last step ended the episode.
        """
        return kept

    def first_kept(self, kept: Pairs) -> Any:
        """The first step that has both observations; 0 if no step lacks one."""
        return 0

    def read(self, kept: Pairs, step: Any, last: Any, over: Any, place: Any) -> tuple[Any, Any]:
        """The observations before the first and after the last step of B windows.

        Args:
            kept: all observations.
            step, last: [B] the numbers of these steps, of the same episode.
            over: [B] whether the episode ended with the last step.
            place: [B] the trajectories.
        """
        at, to = step % self.steps, last % self.steps
        return (
            jax.tree.map(lambda leaf: leaf[at, place], kept.obs),
            jax.tree.map(lambda leaf: leaf[to, place], kept.new_obs),
        )


class Frames(NamedTuple):
    """Stored frames: whole observations, or the newest part of stacked ones.

    Args:
        slots: trees of arrays [E + M · R, ...]: the last frames of E episodes, then the frames before each of M steps.
        ends: [C, R] the slot of the last frame, where an episode ended with the step.
        ages: [C, R] the number of earlier frames of the episode, at most k - 1.
        next_age: [R] the age of the next step.
        ended: [] the number of episodes that have ended, modulo a large multiple of E.
        ended_before: [C] `ended` before each step.
        first: [] the first step since which all last frames are kept.
    """

    slots: Any
    ends: Any
    ages: Any
    next_age: Any
    ended: Any
    ended_before: Any
    first: Any


@dataclass(frozen=True)
class ObservationsOnce:
    """Pure functions of `Frames`.

    The last frames of episodes have a ring of their own, of E slots. When the last frame of an episode is overwritten,
    no step up to the end of that episode can be drawn any more.

    Args:
        steps: C, the number of steps that are kept.
        places: R, the number of trajectories that run at a time.
        length: T, the number of steps that are put at a time. It divides C.
        n_step: the number of steps of a window.
        count: k, the number of frames in an observation.
        space: the space of one frame, if observations are stacks of `rollax.env.stacking`; otherwise None.
    """

    steps: int
    places: int
    length: int
    n_step: int
    count: int = 1
    space: spaces.Space | None = None

    @property
    def last_ones(self) -> int:
        """E, at least the number of episodes that can end in a call of `put`, or in one window."""
        rows = self.steps * self.places
        return max(rows // STEPS_PER_END, max(self.length, self.n_step) * self.places)

    @property
    def frames(self) -> int:
        """M, room for the frames of C steps, k - 1 before and 1 after them; a multiple of T."""
        return self.length * -(-(self.steps + self.count) // self.length)

    @property
    def _counted(self) -> int:
        """The modulus of `ended`: above the number of episodes in the ring, and low enough for sums in int32."""
        return self.last_ones * (2**30 // self.last_ones)

    def empty(self, like: Any) -> Frames:
        """Zeros for observations of the shapes and dtypes of `like` [T, R, ...]."""
        slots = self.last_ones + self.frames * self.places
        frames = jax.eval_shape(self._latest, like)
        ages = jnp.zeros((self.steps, self.places), np.min_scalar_type(self.count - 1))
        return Frames(
            jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape[2:]), leaf.dtype), frames),
            jnp.zeros((self.steps, self.places), jnp.int32),
            ages,
            jnp.zeros_like(ages[0]),
            jnp.int32(0),
            jnp.zeros(self.steps, jnp.int32),
            jnp.int32(0),
        )

    def in_use(self, kept: Frames, taken: int) -> Any:
        """As `ObservationPairs.in_use`."""
        ends = np.arange(min(taken * self.places, self.last_ones))
        slots = np.concatenate([ends, self.last_ones + np.arange(min(taken + 1, self.frames) * self.places)])
        rows = np.arange(min(taken, self.steps))
        return Frames(jax.tree.map(lambda _: slots, kept.slots), rows, rows, ..., ..., rows, ...)

    # Traced by JAX.

    def put(self, kept: Frames, obs: Any, new_obs: Any, over: jax.Array, taken: jax.Array) -> Frames:
        """As `ObservationPairs.put`."""
        frames, following = self._latest(obs), self._latest(new_obs)
        before = (jnp.cumsum(over) - over.reshape(-1).astype(int)).reshape(over.shape)
        numbers = (kept.ended + before) % self._counted
        ends = numbers % self.last_ones
        somewhere = jnp.where(over, ends, len(jax.tree.leaves(kept.slots)[0])).reshape(-1)
        newest = self._slot(taken + self.length, 0)

        def put(slots: jax.Array, frames: jax.Array, following: jax.Array) -> jax.Array:
            slots = lax.dynamic_update_slice_in_dim(slots, _flat(frames), self._slot(taken, 0), 0)
            slots = lax.dynamic_update_slice_in_dim(slots, following[-1], newest, 0)
            return slots.at[somewhere].set(_flat(following), mode="drop")

        ages, next_age = self._ages(kept.next_age, over)
        at = taken % self.steps

        def of_steps(rows: jax.Array, new: jax.Array) -> jax.Array:
            return lax.dynamic_update_slice_in_dim(rows, new.astype(rows.dtype), at, 0)

        after = kept._replace(
            slots=jax.tree.map(put, kept.slots, frames, following),
            ends=of_steps(kept.ends, ends),
            ages=of_steps(kept.ages, ages),
            next_age=next_age.astype(kept.next_age.dtype),
            ended=(kept.ended + over.sum()) % self._counted,
            ended_before=of_steps(kept.ended_before, numbers[:, 0]),
        )
        return after._replace(first=self._first(after, taken + self.length))

    def cut(self, kept: Frames, over: jax.Array, taken: jax.Array) -> Frames:
        """As `ObservationPairs.cut`."""
        runs = ~over
        ends = (kept.ended + jnp.cumsum(runs) - runs.astype(int)) % self.last_ones
        somewhere = jnp.where(over, len(jax.tree.leaves(kept.slots)[0]), ends)

        def put(slots: jax.Array) -> jax.Array:
            newest = lax.dynamic_slice_in_dim(slots, self._slot(taken, 0), self.places, 0)
            return slots.at[somewhere].set(newest, mode="drop")

        row = (taken - 1) % self.steps
        after = kept._replace(
            slots=jax.tree.map(put, kept.slots),
            ends=kept.ends.at[row].set(jnp.where(over, kept.ends[row], ends)),
            next_age=jnp.zeros_like(kept.next_age),
            ended=(kept.ended + runs.sum()) % self._counted,
        )
        return after._replace(first=self._first(after, taken))

    def first_kept(self, kept: Frames) -> Any:
        """As `ObservationPairs.first_kept`."""
        return kept.first

    def read(self, kept: Frames, step: Any, last: Any, over: Any, place: Any) -> tuple[Any, Any]:
        """As `ObservationPairs.read`."""
        before, same = (self._slots(kept, number, place) for number in (step, last))
        end = kept.ends[last % self.steps, place]
        return (
            self._read(kept, before),
            self._read(kept, [*same[1:], jnp.where(over, end, self._slot(last + 1, place))]),
        )

    def _slots(self, kept: Frames, step: Any, place: Any) -> list[jax.Array]:
        """k arrays [B]: the slots of the frames of B observations, the oldest first."""
        age = kept.ages[step % self.steps, place].astype(jnp.int32)
        return [self._slot(step - jnp.minimum(back, age), place) for back in reversed(range(self.count))]

    def _slot(self, step: Any, place: Any) -> Any:
        """The slot of the frame before a step, which is kept for M steps."""
        return self.last_ones + step % self.frames * self.places + place

    def _read(self, kept: Frames, slots: Sequence[Any]) -> Any:
        frames = [jax.tree.map(lambda leaf: leaf[at], kept.slots) for at in slots]  # noqa: B023
        return frames[0] if self.space is None else joined(self.space, self.count, frames)

    def _latest(self, obs: Any) -> Any:
        return obs if self.space is None else latest(self.space, self.count, obs)

    def _ages(self, first: jax.Array, over: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The ages [T, R] of T steps, and [R] of the step after them; `first` [R] are the ages of the first step."""
        step = jnp.arange(len(over) + 1)[:, None]
        begins = jnp.concatenate([-first.astype(jnp.int32)[None], jnp.where(over, step[1:], -self.count)])
        ages = jnp.minimum(step - lax.cummax(begins), self.count - 1)
        return ages[:-1], ages[-1]

    def _first(self, kept: Frames, taken: jax.Array) -> jax.Array:
        """The oldest of the last C steps such that at most E episodes ended in it or later."""

        def overflows(step: jax.Array) -> jax.Array:
            ended = (kept.ended - kept.ended_before[step % self.steps]) % self._counted
            return (ended > self.last_ones) & (step < taken)

        return lax.while_loop(overflows, lambda step: step + 1, jnp.maximum(kept.first, taken - self.steps))


def _flat(rows: jax.Array) -> jax.Array:
    """[T, R, ...] -> [T · R, ...]."""
    return rows.reshape(-1, *rows.shape[2:])
