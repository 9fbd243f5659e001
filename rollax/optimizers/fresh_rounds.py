"""`FreshRounds`: rounds that learn from their own rows, all on the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import SampleBatch
from rollax.optimizers.compiled_rounds import CompiledRounds, Learned, Round
from rollax.policy.gradient_steps import Variables
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.traced_columns import Steps
from rollax.policy.update_plan import Minibatches, training_bucket
from rollax.rollout.compiled_policy import PolicyColumns
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.compiled_sampler import Rows as Played


class OnlyOnHostError(Exception):
    """An algorithm reads columns or returns statistics that are not on the device; raised while a round is traced."""


class FreshRounds(CompiledRounds):
    """Samples train batches and learns from them in compiled calls.

    A round is the same as a step of `SyncSamplesOptimizer`: the same random numbers, rows in the same order, the same
    minibatches. Advantages are sums of float32.

    Args:
        sampler, policy: as for `CompiledRounds`; the algorithm has `TracedColumns`.
        fragments: F, the number of fragments of a train batch, at whose ends advantages are cut.
    """

    def __init__(self, sampler: CompiledSampler, policy: JaxPolicy, fragments: int) -> None:
        super().__init__(sampler, policy, fragments * sampler.fragment_length)
        self._fragments = fragments

    def draw(self) -> Round:
        """Draws the random numbers of the next round: for actions, the loss, and the rows of each gradient step."""
        policy, plan, rows = self.policy, self.policy.plan, self.rows_of_round
        noise = self.draw_noise()
        columns = policy.algorithm.noise_columns(rows, policy.learning_rng)
        drawn = Minibatches.draw(
            policy.learning_rng, rows, plan.minibatch_size, plan.epochs, microbatch_size=plan.microbatch_size
        )
        learning = columns, drawn.rows, np.int32(drawn.steps), np.int32(drawn.steps - drawn.last_epoch)
        return Round(noise, learning, policy.coefficients())

    # Traced by JAX.

    def traced_learning(
        self, variables: Variables, stored: Any, played: Played, learning: Any, coefficients: Any, taken: jax.Array
    ) -> tuple[Variables, Any, Learned, jax.Array]:
        noise, plan, planned, per_epoch = learning
        columns: PolicyColumns = played.columns[self.policy_id]
        fetched = self.policy.actor.fetches_of(columns.packed)
        obs, following = columns.inputs[SampleBatch.OBS], columns.new_inputs[SampleBatch.OBS]
        terminated, truncated = self.traced_flags(played)
        sampled = {
            SampleBatch.OBS: obs,
            SampleBatch.ACTIONS: columns.actions,
            SampleBatch.REWARDS: self.traced_rewards(played).reshape(-1),
            SampleBatch.TERMINATEDS: terminated.reshape(-1),
            SampleBatch.TRUNCATEDS: truncated.reshape(-1),
            SampleBatch.NEW_OBS: following,
            **fetched,
        }
        algorithm: Any = self.policy.algorithm
        steps = self._steps(variables, played, fetched.get(SampleBatch.VF_PREDS), following)
        computed = {name: column.reshape(-1) for name, column in algorithm.traced_columns(steps).items()}
        there = {**sampled, **computed}
        if missing := [name for name in algorithm.reads if name not in there]:
            raise OnlyOnHostError(f"columns {missing}")
        read = {name: there[name] for name in algorithm.reads}
        batch = jax.tree.map(self._padded, {**jax.tree.map(self._in_order, read), **noise})
        batch = self.devices.share_rows(batch)
        variables, (made, sums, counts, by_row, finite) = self.policy.learner.steps.run_plan(
            variables, batch, plan, planned, per_epoch, coefficients
        )
        if by_row:
            raise OnlyOnHostError(f"statistics by row: {sorted(by_row)}")
        return variables, stored, Learned(made, planned, per_epoch, sums, counts), finite & self.traced_sound(played)

    def _steps(self, variables: Variables, played: Played, values: Any, following: Any) -> Steps:
        """The steps as trajectories [R · F, T / F]."""
        terminated, truncated = self.traced_flags(played)
        over = terminated | truncated

        def by_fragment(column: jax.Array) -> jax.Array:
            return column.reshape(self.places * self._fragments, -1)

        rewards, terminated, over = map(by_fragment, (self.traced_rewards(played), terminated, over))
        if values is None:
            return Steps(rewards, None, None, terminated, over)
        values = by_fragment(values)
        return Steps(rewards, values, self._next_values(variables, values, following, over), terminated, over)

    def _next_values(self, variables: Variables, values: jax.Array, following: Any, over: jax.Array) -> jax.Array:
        """The value after each step: of the next row, or of `following` where an episode or a fragment ends."""

        def values_of(obs: Any) -> jax.Array:
            return self.policy.actor.values(variables.params, variables.extra, {SampleBatch.OBS: obs})

        def of_all() -> jax.Array:
            return values_of(following).reshape(values.shape)

        def of_last() -> jax.Array:
            last = jax.tree.map(lambda leaf: leaf.reshape(*values.shape, *leaf.shape[1:])[:, -1], following)
            return jnp.concatenate([values[:, 1:], values_of(last)[:, None]], axis=1)

        return lax.cond((over[:, :-1]).any(), of_all, of_last)

    def _in_order(self, column: jax.Array) -> jax.Array:
        """[R · T, ...] -> the rows in the order of fragments, as they are on the host."""
        if self._fragments == 1:
            return column
        parts = column.reshape(self.places, self._fragments, -1, *column.shape[1:])
        return jnp.swapaxes(parts, 0, 1).reshape(column.shape)

    def _padded(self, column: jax.Array) -> jax.Array:
        """The column with rows of zeros appended, up to the number of rows for which minibatches are drawn."""
        missing = training_bucket(self.rows_of_round) - len(column)
        return column if not missing else jnp.pad(column, [(0, missing), *[(0, 0)] * (column.ndim - 1)])
