"""`CompiledRounds`: many rounds of sampling, storing and learning from replay, in one compiled call."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.batch import SampleBatch
from rollax.core.memory import check_buffer_fits
from rollax.core.spaces import Path, walk
from rollax.core.stored_values import read_count
from rollax.optimizers.ring import Ring, Rows
from rollax.policy.gradient_steps import Variables
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.minibatches import Minibatches
from rollax.rollout.compiled_policy import PolicyColumns
from rollax.rollout.compiled_sampler import Carry, CompiledSampler

log = logging.getLogger("rollax.optimizers")


class Round(NamedTuple):
    """What the host draws for a round of T steps and at most U updates from B rows.

    Args:
        noise: the random numbers of the actions, from `TracedActing.draw_noise(T, R)`; None for greedy ones.
        updates: [] the number of updates.
        drawn: [U B, 2] the step and the trajectory of each row to learn from; of the first updates only.
        columns: the random numbers of the loss, [U B, ...].
        coefficients: the coefficients of the loss.
    """

    noise: Any
    updates: Any
    drawn: Any
    columns: Any
    coefficients: Any


class _Outcomes(NamedTuple):
    """Of K rounds: rewards [K, N, A, T], flags [K, N, T]."""

    rewards: Any
    terminateds: Any
    truncateds: Any


class _Loop(NamedTuple):
    """The state between rounds; `finite` is whether observations, outputs and updates of the last round were finite."""

    number: Any
    variables: Variables
    carry: Carry
    rows: Rows
    outcomes: _Outcomes
    learned: Any
    finite: Any


class CompiledRounds:
    """Samples, stores and learns in compiled calls; the rows stay on the device.

    A round is the same as a step of `SyncReplayOptimizer`: T steps of all sub-environments with the weights of before,
    then the updates that are due, from rows that are drawn before the first of them.

    Args:
        sampler: the sampler of the environment in JAX.
        policy: its only policy.
        capacity: the number of rows to store.
        updates: U, the largest number of updates of a round.
    Attributes:
        taken: the number of steps of each sub-environment that were stored so far, the overwritten ones included.
        made: the number of rounds of the last call of `run`, the last one included if it raised.
        rng: draws the rows to learn from.
    """

    def __init__(
        self, sampler: CompiledSampler, policy: JaxPolicy, capacity: int, updates: int, seed: int | None
    ) -> None:
        self._sampler, self._policy = sampler, policy
        ((self._id, self._compiled),) = sampler.compiled.items()
        self._length = sampler.fragment_length
        self._places = sampler.env.num_envs * len(self._compiled.agents)
        self._batch_size, self.most_updates = policy.minibatch_size or 1, updates
        config = policy.config
        rounds = max(capacity // self._places // self._length, -(-config.n_step // self._length))
        self._ring = Ring(rounds * self._length, config.n_step, config.gamma)
        self.taken, self.made, self.rng = 0, 0, np.random.default_rng(seed)
        self._rows: Rows | None = None
        # At least two steps: a loop of one is made whatever the number of updates is.
        rows = np.arange(max(updates, 2) * self._batch_size, dtype=np.int32)
        self._plan = np.minimum(rows, updates * self._batch_size - 1).reshape(-1, self._batch_size)
        self._run = jax.jit(self._traced_run, donate_argnums=2)
        self._transitions = jax.jit(self._ring.transitions)

    def __len__(self) -> int:
        """The number of transitions that can be drawn."""
        return self._ring.drawable(self.taken) * self._places

    @property
    def rows_of_round(self) -> int:
        """The number of rows that a round stores."""
        return self._length * self._places

    @property
    def env_steps_of_round(self) -> int:
        """The number of environment steps of a round."""
        return self._length * self._sampler.env.num_envs

    def can_draw(self, number: int) -> bool:
        """Whether there is a row to draw in the round that is `number` rounds after the last one."""
        return self._ring.drawable(self.taken + (number + 1) * self._length) > 0

    def draw(self, updates: int, number: int) -> Round:
        """Draws the numbers of the round that is `number` rounds after the last one, with this number of updates."""
        policy, size = self._policy, self.most_updates * self._batch_size
        noise = self._compiled.draw_noise(self._length) if self._sampler.explore else None
        drawn, count = np.zeros((size, 2), np.int32), updates * self._batch_size
        if count:
            drawn[:count] = self._ring.draw(self.rng, self.taken + (number + 1) * self._length, count, self._places)
        columns = policy.algorithm.noise_columns(size, policy.learning_rng)
        return Round(noise, np.int32(updates), drawn, columns, policy.coefficients())

    def run(self, rounds: Sequence[Round], at_once: int) -> dict[str, Any] | None:
        """Runs rounds; returns the statistics of the last updates, None if there were none.

        Args:
            rounds: at most `at_once` of them.
            at_once: the number for which the call is compiled.
        Raises:
            EnvError: observations or rewards are not finite.
            NonFiniteError: outputs of the model, a loss, a gradient or a new parameter are not finite. The updates
                before it are kept.
        """
        policy, learner = self._policy, self._policy.learner
        self.made, before = 0, self.taken
        if not self._sampler.runs and self._rows is not None:
            self._rows = self._ring.cut(self._rows, self.taken)
        carry, variables = self._sampler.begun(), learner.everywhere()
        padded = [*rounds, *[rounds[-1]] * (at_once - len(rounds))]
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *padded)
        if self._rows is None:
            self._rows = self._ring.empty(self._like())
        rows, self._rows, self.taken = self._rows, None, 0  # the call gives their memory to its result
        try:
            found = self._run(variables, carry, rows, stacked, np.int32(before), np.int32(len(rounds)))
            fetched = jax.device_get((found.number, found.finite, found.outcomes, found.learned))
        except BaseException:
            if lost := min(before, self._ring.steps) * self._places:
                log.warning("Sampling and learning were interrupted: the %d rows of the replay buffer are lost.", lost)
            raise
        (made, finite, outcomes, learned), self._rows = fetched, found.rows
        self.made = int(made)
        self.taken = before + self.made * self._length
        complete = self.made if finite else self.made - 1
        learner.assign(found.variables, learner.num_updates + int(sum(one.updates for one in rounds[:complete])))
        self._sampler.played(found.carry, *(_joined(part[: self.made]) for part in outcomes))
        if not finite:
            self._raise_not_finite(rounds[complete], before + complete * self._length)
        updates, sums, counts = learned
        if not updates:
            return None
        steps = {**dict.fromkeys(sums, updates), **counts}
        means = {name: float(total) / int(steps[name]) for name, total in sums.items() if steps[name]}
        return policy.reported_after(means, int(updates))

    def _like(self) -> Rows:
        """The shapes and dtypes of the rows of a round; ConfigError if all rows need more than the memory."""
        policy = self._policy
        obs, actions = (walk(_empty, space) for space in (policy.observation_space, policy.action_space))
        number = jax.ShapeDtypeStruct((), jnp.float32)
        flag = jax.ShapeDtypeStruct((), bool)

        def of_round(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((self._length, self._places, *leaf.shape), leaf.dtype)

        like = jax.tree.map(of_round, Rows(obs, actions, number, flag, flag, obs))
        needed = -(-self._ring.bytes_of(like) // self._places)
        check_buffer_fits(self._ring.steps * self._places, needed, f"replay buffer of policy {policy.name!r}")
        return like

    def _raise_not_finite(self, failed: Round, taken: int) -> None:
        """Raises the error of a round with numbers that are not finite; its first finite updates are kept."""
        assert self._rows is not None
        policy, at = self._policy, taken % self._ring.steps
        recent = jax.tree.map(
            lambda leaf: np.asarray(leaf[at : at + self._length]), (self._rows.obs, self._rows.new_obs)
        )
        for obs in recent:
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs)
            self._sampler.env.checked(
                policy.observation_space, rows, self.rows_of_round, lambda row: repr(self._sampler.env)
            )
            policy.compute_actions(rows, explore=False)
        updates = int(failed.updates)
        if not updates:
            return
        count = updates * self._batch_size
        drawn = self._transitions(self._rows, failed.drawn[:count, 0], failed.drawn[:count, 1])
        columns = jax.tree.map(np.asarray, {**drawn, **{name: part[:count] for name, part in failed.columns.items()}})
        plan = Minibatches(np.arange(count, dtype=np.int32).reshape(updates, -1), updates, 0, count)
        update = policy.learner.learn(columns, plan, failed.coefficients, where=f"policy {policy.name!r}")
        if update.error is not None:
            raise update.error

    def get_state(self) -> dict[str, Any]:
        """The stored rows, as arrays and JSON values; {} without any."""
        return {} if self._rows is None else {"taken": self.taken, **self._ring.stored(self._rows, self.taken)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; {} empties the buffer.

        Raises:
            CheckpointError: the rows do not fit; nothing has changed then.
        """
        rows, taken = None, 0
        if state:
            where = f"replay buffer of policy {self._policy.name!r}"
            taken = read_count(state, "taken", where)
            rows = self._ring.restored(self._like(), state, taken, where)
        self._rows, self.taken = rows, taken

    # Traced by JAX.

    def _traced_run(
        self, variables: Variables, carry: Carry, rows: Rows, rounds: Round, taken: jax.Array, count: jax.Array
    ) -> _Loop:
        length, number = self._length, len(rounds.updates)
        env = self._sampler.env
        flags = jnp.zeros((number, env.num_envs, length), bool)
        outcomes = _Outcomes(jnp.zeros((number, env.num_envs, len(env.agents), length)), flags, flags)

        def now(at: Any) -> Round:
            return jax.tree.map(lambda part: jnp.asarray(part)[at], rounds)

        shapes = jax.eval_shape(lambda: self._learned(variables, rows, now(0))[1])
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def one(loop: _Loop) -> _Loop:
            drawn = now(loop.number)
            carry, played = self._rolled(loop.variables, loop.carry, drawn.noise)
            new = self._new_rows(played)
            rows = self._ring.put(loop.rows, new, taken + loop.number * length)
            after, learned, finite = self._learned(loop.variables, rows, drawn)
            finite &= self._finite(played.columns[self._id], new)
            # The updates of a round with numbers that are not finite are taken back here, and made again on the host.
            after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, loop.variables)
            learns = drawn.updates > 0
            learned = jax.tree.map(lambda new, old: jnp.where(learns, new, old), learned, loop.learned)
            at_round = [
                whole.at[loop.number].set(part)
                for whole, part in zip(
                    loop.outcomes, (played.rewards, played.terminateds, played.truncateds), strict=True
                )
            ]
            return _Loop(loop.number + 1, after, carry, rows, _Outcomes(*at_round), learned, finite)

        start = _Loop(jnp.int32(0), variables, carry, rows, outcomes, nothing, jnp.array(True))
        return lax.while_loop(lambda loop: (loop.number < count) & loop.finite, one, start)

    def _rolled(self, variables: Variables, carry: Carry, noise: Any) -> tuple[Carry, Any]:
        of_policy = {self._id: noise} if noise is not None else None
        params, extra = {self._id: variables.params}, {self._id: variables.extra}
        return self._sampler.traced_rollout(params, extra, carry, of_policy, steps=self._length, learning=frozenset())

    def _new_rows(self, played: Any) -> Rows:
        """The rows [T, R, ...] of a rollout, whose columns are [R T, ...]."""
        columns: PolicyColumns = played.columns[self._id]
        agents = len(self._compiled.agents)

        def by_step(leaf: jax.Array) -> jax.Array:
            return jnp.swapaxes(leaf.reshape(self._places, self._length, *leaf.shape[1:]), 0, 1)

        rewards = self._compiled.runner.reward_map(played.rewards[:, self._compiled.places].reshape(-1, self._length))
        terminated, truncated = (jnp.repeat(flag, agents, axis=0).T for flag in (played.terminateds, played.truncateds))
        obs, actions, new_obs = (
            jax.tree.map(by_step, part)
            for part in (columns.inputs[SampleBatch.OBS], columns.actions, columns.new_inputs[SampleBatch.OBS])
        )
        return Rows(obs, actions, rewards.astype(jnp.float32).T, terminated, truncated, new_obs)

    def _learned(self, variables: Variables, rows: Rows, drawn: Round) -> tuple[Variables, Any, jax.Array]:
        batch = {**self._ring.transitions(rows, drawn.drawn[:, 0], drawn.drawn[:, 1]), **drawn.columns}
        after, (_, sums, counts, _, finite) = self._policy.learner.steps.run_plan(
            variables, batch, jnp.asarray(self._plan), drawn.updates, jnp.maximum(drawn.updates, 1), drawn.coefficients
        )
        return after, (drawn.updates, sums, counts), finite

    def _finite(self, columns: PolicyColumns, new: Rows) -> jax.Array:
        """Whether observations, and what actions were chosen from, are finite."""
        chosen = self._policy.actor.fetches_of(columns.packed)[self._policy.checked_fetch]
        floats = [leaf for leaf in jax.tree.leaves((new.obs, new.new_obs)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.isfinite(chosen).all() & ~jnp.stack([jnp.isnan(leaf).any() for leaf in floats] or [False]).any()


def _empty(space: spaces.Space, path: Path) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(space.shape or (), jax.dtypes.canonicalize_dtype(space.dtype))


def _joined(part: np.ndarray) -> np.ndarray:
    """[K, N, ..., T] -> [N, ..., K T]."""
    moved = np.moveaxis(part, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)
