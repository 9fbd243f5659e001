"""`ReplayRounds`: rounds that store their rows on the device, and learn from rows drawn among all stored ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.batch import Columns, SampleBatch
from rollax.config.replay_groups import ReplayFields
from rollax.core.spaces import Path, walk
from rollax.core.stored_values import read_count
from rollax.env.jax.jax_base_env import JaxBaseEnv
from rollax.env.jax.wrappers import JaxFrameStack
from rollax.env.multi_agent.multi_agent_env import space_of
from rollax.errors import CheckpointError
from rollax.optimizers.compiled_rounds import CompiledRounds, Learned, Loop, Round
from rollax.optimizers.ring import Ring, RingPriorities, Rows, Steps
from rollax.optimizers.ring_observations import ObservationPairs, ObservationsOnce
from rollax.policy.checks import not_finite
from rollax.policy.gradient_steps import Variables
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.update_plan import Minibatches
from rollax.replay.buffer_sizes import check_buffer_fits
from rollax.rollout.compiled_policy import PolicyColumns
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.compiled_sampler import Rows as Played

log = logging.getLogger("rollax.optimizers")

LARGE_OBSERVATION = 512
"""Bytes. On one device, observations of this size or more are stored once; smaller ones are faster to store twice."""


class Stored(NamedTuple):
    """The stored rows, and their `Priorities`; None where they are drawn uniformly."""

    rows: Rows
    priorities: Any


class ReplayRounds(CompiledRounds):
    """Samples, stores and learns in compiled calls; the rows stay on the device.

    A round is the same as a step of `SyncReplayOptimizer`: T steps of all sub-environments with the weights before the
    round, then the updates that are due, from rows that are drawn before the first update.

    Args:
        sampler, policy: as for `CompiledRounds`.
        config: the config of the run; `n_step` and `gamma` come from the policy's config. `buffer_size` is rounded down
            to whole rounds, but at least the rows of `n_step` steps are stored.
        updates: U, the largest number of updates of a round.
    Attributes:
        taken: the number of steps of each sub-environment that were stored so far, the overwritten ones included.
        rng: draws the rows to learn from.
    """

    def __init__(self, sampler: CompiledSampler, policy: JaxPolicy, config: ReplayFields, updates: int) -> None:
        super().__init__(sampler, policy, sampler.fragment_length)
        self._batch_size, self.most_updates = policy.minibatch_size or 1, updates
        n_step, gamma = policy.config.n_step, policy.config.gamma
        rounds = max(config.buffer_size // self.places // self.length, -(-n_step // self.length))
        steps = rounds * self.length
        self._ring = Ring(steps, n_step, gamma, self._observations(steps, n_step))
        self._priorities = RingPriorities.of(self._ring, self.places, config)
        self.taken, self.rng = 0, np.random.default_rng(config.seed)
        self._stored: Stored | None = None
        self._inputs: Any = None  # of the step after the last round
        # At least two steps: a plan of one step would be made even if no update is due.
        rows = np.arange(max(updates, 2) * self._batch_size, dtype=np.int32)
        self._plan = np.minimum(rows, updates * self._batch_size - 1).reshape(-1, self._batch_size)
        self._batch, self._observed = jax.jit(self._traced_batch), jax.jit(self._ring.observed)
        self._cut = jax.jit(self._traced_cut, donate_argnums=0)

    def _observations(self, steps: int, n_step: int) -> ObservationPairs | ObservationsOnce:
        """How observations are stored: large ones once, but on several devices always as pairs."""
        env, space = self.sampler.env, self.policy.observation_space
        if _bytes(walk(_empty, space)) < LARGE_OBSERVATION or self.devices.count > 1:
            return ObservationPairs(steps)
        frames: tuple[int, spaces.Space | None] = 1, None
        if isinstance(env, JaxBaseEnv) and isinstance(env := env.functions.env, JaxFrameStack):
            frames = env.count, space_of(env.env, "observation_space", self.compiled.agents[0])
        return ObservationsOnce(steps, self.places, self.length, n_step, *frames)

    def __len__(self) -> int:
        """The number of transitions that can be drawn."""
        rows = None if self._stored is None else self._stored.rows
        return self._ring.drawable(self.taken, rows) * self.places

    def can_draw(self, number: int) -> bool:
        """Whether there is a row to draw in the round that is `number` rounds after the next one."""
        return self._ring.drawable(self.taken + (number + 1) * self.length) > 0

    def draw(self, updates: int, number: int) -> Round:
        """Draws the numbers of the round that is `number` rounds after the next one, with `updates` updates.

        `Round.learning` is `(updates, drawn, noise)`, in which only the first `updates` · B rows count. `drawn` are
        steps and trajectories [U · B, 2]; with priorities, they are numbers [U · B] for `RingPriorities.drawn`. `noise`
        [U · B, ...] are the random numbers of the loss.
        """
        policy, size = self.policy, self.most_updates * self._batch_size
        noise = self.draw_noise()
        count = updates * self._batch_size
        if self._priorities is not None:
            drawn = self._priorities.draw(self.rng, count, size)
        else:
            drawn = np.zeros((size, 2), np.int32)
            if count:
                drawn[:count] = self._ring.draw(self.rng, self.taken + (number + 1) * self.length, count, self.places)
        columns = policy.algorithm.noise_columns(size, policy.learning_rng)
        return Round(noise, (np.int32(updates), drawn, columns), policy.coefficients())

    def run(self, rounds: Sequence[Round], at_once: int) -> dict[str, Any] | None:
        """Runs rounds; returns the statistics of the last updates, None if there were none.

        Args:
            rounds: at most `at_once` of them.
            at_once: the number of rounds for which the call is compiled.
        Raises:
            EnvError: observations or rewards are not finite, or an action mask allows no action.
            NonFiniteError: outputs of the model, a loss, a gradient or a new parameter are not finite. The updates
                before it are kept.
        """
        before = self.taken
        stored: Stored = jax.jit(self._traced_empty)() if self._stored is None else self._stored
        self._stored, self.taken = None, 0  # the call donates the memory of the rows
        try:
            if before and not (self.sampler.runs and self.compiled.inputs is self._inputs):  # sampled elsewhere since
                stored = stored._replace(rows=self._cut(stored.rows, np.int32(before)))
            found = self.called(stored, rounds, before, at_once)
        except BaseException:
            if lost := min(before, self._ring.steps) * self.places:
                log.warning("Sampling and learning were interrupted: the %d rows of the replay buffer are lost.", lost)
            raise
        self._stored, self.taken = found.stored, before + self.made * self.length
        if went_on := not found.finite and found.number > self.made:  # for other runs; the rows are of no use
            log.warning("Numbers are not finite: the %d rows of the replay buffer are lost.", len(self))
            self._stored, self.taken = None, 0
        self.advance(found)
        self._inputs = self.compiled.inputs
        if went_on:
            where, what = (
                f"policy {self.policy.name!r}",
                "an observation, an output of the model, a loss or a parameter",
            )
            raise not_finite(where, self.policy.learner.num_updates, what)
        if not found.finite:
            self._raise_not_finite(rounds[self.made - 1], self.taken - self.length)
        return self._statistics(found)

    def _statistics(self, found: Loop) -> dict[str, Any] | None:
        learning = np.flatnonzero(found.learned.planned[: self.made])
        if not len(learning):
            return None
        last = found.learned.of(int(learning[-1]))
        return self.policy.reported_after(last.means(), int(last.taken))

    def _like(self) -> Steps:
        """The shapes and dtypes of the rows of a round; ConfigError if all rows need more than the memory."""
        policy = self.policy
        obs, actions = (walk(_empty, space) for space in (policy.observation_space, policy.action_space))
        number = jax.ShapeDtypeStruct((), jnp.float32)
        flag = jax.ShapeDtypeStruct((), bool)

        def of_round(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((self.length, self.places, *leaf.shape), leaf.dtype)

        like = jax.tree.map(of_round, Steps(obs, actions, number, flag, flag, obs))
        capacity = self._ring.steps * self.places
        needed = -(-self._ring.bytes_of(like) // capacity)
        check_buffer_fits(capacity, needed, f"replay buffer of policy {policy.name!r}")
        return like

    def _raise_not_finite(self, failed: Round, taken: int) -> None:
        """Raises the error of a round with numbers that are not finite; its first finite updates are kept."""
        assert self._stored is not None
        policy = self.policy
        step, place = np.divmod(np.arange(self.rows_of_round, dtype=np.int32), np.int32(self.places))
        for obs in jax.tree.map(np.asarray, self._observed(self._stored.rows, taken + step, taken + step, place)):
            self.sampler.env.checks.columns(
                policy.observation_space, obs, self.rows_of_round, lambda row: repr(self.sampler.env)
            )
            policy.compute_actions(obs, explore=False)
        updates = int(failed.learning[0])
        if not updates:
            return
        count = updates * self._batch_size
        batch, _ = self._batch(self._stored, failed.learning, taken + self.length)
        columns = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], batch)
        plan = Minibatches(np.arange(count, dtype=np.int32).reshape(updates, -1), updates, 0, count)
        coefficients = {**failed.coefficients, **policy.coefficients_of_statistics()}
        update = policy.learner.learn(columns, plan, coefficients, where=f"policy {policy.name!r}")
        if update.error is not None:
            raise update.error

    def get_state(self) -> dict[str, Any]:
        """The stored rows, as arrays and JSON values; {} without rows."""
        if self._stored is None:
            return {}
        state = {"taken": self.taken, **self._ring.stored(self._stored.rows, self.taken)}
        if self._priorities is not None and self._stored.priorities is not None:
            state |= self._priorities.stored(self._stored.priorities, self.taken)
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; {} empties the buffer. Rows without priorities get initial priorities.

        Raises:
            CheckpointError: the rows do not fit; nothing has changed then.
            ConfigError: the buffer does not fit into the memory; nothing has changed then.
        """
        stored, taken = None, 0
        if state:
            where = f"replay buffer of policy {self.policy.name!r}"
            taken = read_count(state, "taken", where)
            if taken % self.length:
                raise CheckpointError(
                    "The stored rows are not whole rounds of this rollout_fragment_length.",
                    where,
                    f"{taken} steps of each sub-environment, in rounds of {self.length}",
                ).expected("a fragment length that divides them", "set rollout_fragment_length as in the saved run")
            rows = self._ring.restored(self._like(), state, taken, where)
            priorities = self._priorities and self._priorities.restored(state, taken, where)
            stored = Stored(self.devices.by_row(rows, axis=1), self.devices.everywhere(priorities))
        self._stored, self.taken = stored, taken

    # Traced by JAX.

    def _traced_empty(self) -> Stored:
        return self._shared(Stored(self._ring.empty(self._like()), self._priorities and self._priorities.empty()))

    def _traced_cut(self, rows: Rows, taken: jax.Array) -> Rows:
        return self.devices.share_rows(self._ring.cut(rows, taken), axis=1)

    def _shared(self, stored: Stored) -> Stored:
        """Divides the rows among the devices by trajectory; each device has all priorities, which draws add up."""
        return Stored(self.devices.share_rows(stored.rows, axis=1), self.devices.replicated(stored.priorities))

    def traced_learning(
        self, variables: Variables, stored: Stored, played: Played, learning: Any, coefficients: Any, taken: jax.Array
    ) -> tuple[Variables, Stored, Learned, jax.Array]:
        updates, new = learning[0], self._new_rows(played)
        priorities = stored.priorities
        if self._priorities is not None:
            priorities = self._priorities.put(priorities, self.length, taken)
        stored = Stored(self._ring.put(stored.rows, new, taken), priorities)
        batch, at = self._traced_batch(stored, learning, taken + self.length)
        per_epoch = jnp.maximum(updates, 1)
        variables, (made, sums, counts, by_row, finite) = self.policy.learner.steps.run_plan(
            variables, batch, jnp.asarray(self._plan), updates, per_epoch, coefficients
        )
        finite &= self.traced_sound(played)
        if self._priorities is not None and SampleBatch.TD_ERROR in by_row:
            errors = by_row[SampleBatch.TD_ERROR]
            priorities, fit = self._priorities.updated(stored.priorities, at, errors, updates * self._batch_size)
            finite &= fit
            priorities = jax.tree.map(lambda new, old: jnp.where(finite, new, old), priorities, stored.priorities)
            stored = stored._replace(priorities=priorities)
        return variables, self._shared(stored), Learned(made, updates, per_epoch, sums, counts), finite

    def _traced_batch(self, stored: Stored, learning: Any, taken: jax.Array) -> tuple[Columns, Any]:
        """`(batch [U · B, ...], steps and trajectories of its rows; None without priorities)`, after `taken` steps."""
        updates, drawn, noise = learning
        if self._priorities is None:
            steps = self._ring.drawable_steps(stored.rows, drawn[:, 0], taken)
            return {**self._ring.transitions(stored.rows, steps, drawn[:, 1]), **noise}, None
        first = self._ring.observations.first_kept(stored.rows.observations)
        count = updates * self._batch_size
        steps, places, weights = self._priorities.drawn(stored.priorities, drawn, count, taken, first)
        batch = self._ring.transitions(stored.rows, steps, places)
        return {**batch, SampleBatch.WEIGHTS: weights, **noise}, (steps, places)

    def _new_rows(self, played: Played) -> Steps:
        """The rows [T, R, ...] of a round, whose columns are [R · T, ...]."""
        columns: PolicyColumns = played.columns[self.policy_id]

        def by_step(leaf: jax.Array) -> jax.Array:
            return jnp.swapaxes(leaf.reshape(self.places, self.length, *leaf.shape[1:]), 0, 1)

        obs, actions, new_obs = (
            jax.tree.map(by_step, part)
            for part in (columns.inputs[SampleBatch.OBS], columns.actions, columns.new_inputs[SampleBatch.OBS])
        )
        terminated, truncated = (flag.T for flag in self.traced_flags(played))
        return Steps(obs, actions, self.traced_rewards(played).T, terminated, truncated, new_obs)


def _empty(space: spaces.Space, path: Path) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(space.shape or (), jax.dtypes.canonicalize_dtype(space.dtype))


def _bytes(shapes: Any) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
