"""`DeviceBatches`: train batches that stay on the device, for environments in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import SampleBatch
from rollax.optimizers.compiled_rounds import (
    CompiledRounds,
    Learned,
    Round,
    counted_steps,
    rounds_at_once,
    why_only_on_host,
)
from rollax.optimizers.optimizer import Optimizer
from rollax.policy.gradient_steps import Variables
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.traced_columns import Steps
from rollax.policy.traced_columns import why_only_on_host as why_not_traced
from rollax.policy.update_plan import Minibatches, training_bucket
from rollax.rollout.compiled_policy import PolicyColumns
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.compiled_sampler import Rows as Played
from rollax.rollout.simulator_sampler import SimulatorSampler
from rollax.rollout.worker import RolloutWorker

_MOST_ROUNDS = 64
_MOST_INDICES = 1 << 22  # of the minibatches of one call


class OnlyOnHostError(Exception):
    """An algorithm reads columns or returns statistics that are not on the device; raised while a round is traced."""


class _Drawn(NamedTuple):
    """What was drawn for a round, and the states of the random generators before it."""

    round: Round
    acting: Any
    learning: Any


class DeviceBatches(CompiledRounds):
    """Samples train batches and learns from them, in one compiled call for up to `at_once` batches of an iteration.

    A round is the same as a step of `SyncSamplesOptimizer` on the host, up to rounding: the same random numbers, rows
    in the same order, the same minibatches. Advantages are sums of float32. `timers` has the time of both sampling and
    learning in `learn_s`.

    Args:
        optimizer: the optimizer; `why_not` is empty for its worker.
    Attributes:
        at_once: the largest number of train batches in one call.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, config = optimizer, optimizer.config
        sampler, (policy,) = optimizer.local_worker.sampler, optimizer.policies.values()
        assert isinstance(sampler, CompiledSampler)
        assert isinstance(policy, JaxPolicy)
        steps = counted_steps(sampler, config)
        # The number of fragments of a train batch, at whose ends advantages are cut.
        self._fragments = -(-config.train_batch_size // steps)
        self._steps_of_round = self._fragments * steps
        super().__init__(sampler, policy, self._fragments * sampler.fragment_length)
        most = _MOST_INDICES // (self.rows_of_round * policy.plan.epochs)
        self.at_once = rounds_at_once(config, self._steps_of_round, _MOST_ROUNDS, most)
        if isinstance(sampler, SimulatorSampler):
            self.at_once = 1  # the steps of later rounds cannot be taken back
        self._numbers_adapt = False

    def step(self) -> bool:
        """Learns from the train batches of an iteration, at most up to `stop_at`.

        Returns:
            False if numbers of a batch are not finite. Earlier batches are learned from; the next batch, sampled on the
            host, has the same random numbers and raises the error. With a simulator, the next batch has fresh episodes,
            and may be finite.
        Raises:
            OnlyOnHostError: the algorithm reads columns or returns statistics that are not on the device; nothing has
                changed then.
        """
        drawn, finite = self._draw(), True
        left = len(drawn)
        with self._optimizer.timings.measured("learn_s"):
            try:
                while left:
                    hold, sound = self._learn_from([one.round for one in drawn[:left]])
                    finite &= sound
                    if hold == left:
                        break
                    left = hold  # again, without the rounds that are not valid
            except OnlyOnHostError:
                self.sampler.taken_back()
                self._go_back(drawn[0])
                raise
        if left < len(drawn):
            self._go_back(drawn[left])
        return finite

    def _go_back(self, drawn: _Drawn) -> None:
        """Restores the random generators to before the draws of a round."""
        _, self.policy.acting_rng.bit_generator.state, self.policy.learning_rng.bit_generator.state = drawn

    def _draw(self) -> list[_Drawn]:
        optimizer, size = self._optimizer, self._steps_of_round
        acting, learning = self.policy.acting_rng.bit_generator, self.policy.learning_rng.bit_generator
        drawn = []
        for number in range(optimizer.rounds_left(size, 1 if self._numbers_adapt else self.at_once)):
            optimizer.local_worker.set_timestep(optimizer.steps + number * size)
            states = acting.state, learning.state
            drawn.append(_Drawn(self._draw_round(), *states))
        return drawn

    def _learn_from(self, drawn: Sequence[Round]) -> tuple[int, bool]:
        """`(the number of valid rounds, whether all numbers are finite)`; if a round is not valid, nothing changes.

        A round is not valid if its numbers are not finite, or if an earlier round has changed `policy.numbers`, such as
        a KL coefficient, which the host adapts.
        """
        optimizer, policy = self._optimizer, self.policy
        found = self.called((), drawn, 0, self.at_once)
        if not found.finite:
            self.sampler.taken_back()
            return self.made - 1, False
        numbers, statistics = policy.numbers, {}
        for number in range(self.made):
            learned = found.learned.of(number)
            statistics = policy.reported_after(learned.means(), int(learned.taken))
            if policy.numbers != numbers and number + 1 < self.made:
                policy.numbers, self._numbers_adapt = numbers, True
                self.sampler.taken_back()
                return number + 1, True
        try:
            self.advance(found)
        finally:
            optimizer.count_rounds(self.made, env_steps=self.env_steps_of_round, agent_steps=self.rows_of_round)
            optimizer.stats[self.policy_id] = statistics
        return self.made, True

    def _draw_round(self) -> Round:
        """Draws random numbers of the next round: for actions, the loss, and the rows of each gradient step."""
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


def why_not(worker: RolloutWorker) -> str:
    """Why a worker's train batches cannot stay on the device; empty if they can."""
    if found := why_only_on_host(worker):
        return found
    (policy,) = worker.policies.values()
    assert isinstance(policy, JaxPolicy)
    if policy.algorithm.sees_all_agents:
        return "a centralized critic"
    return why_not_traced(policy.algorithm)
