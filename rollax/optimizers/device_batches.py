"""`DeviceBatches`: train batches that stay on the device, for environments in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollax.optimizers.compiled_rounds import Round, counted_steps, rounds_at_once, why_only_on_host
from rollax.optimizers.fresh_rounds import FreshRounds, OnlyOnHostError
from rollax.optimizers.optimizer import Optimizer
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.traced_columns import why_only_on_host as why_not_traced
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.simulator_sampler import SimulatorSampler
from rollax.rollout.worker import RolloutWorker

_MOST_ROUNDS = 64
_MOST_INDICES = 1 << 22  # of the minibatches of one call


class _Drawn(NamedTuple):
    """What was drawn for a round, and the states of the random generators before it."""

    round: Round
    acting: Any
    learning: Any


class DeviceBatches:
    """Samples train batches and learns from them, in one compiled call for up to `at_once` batches of an iteration.

    The numbers are the same as on the host, up to rounding. `timers` has the time of both sampling and learning in
    `learn_s`.

    Args:
        optimizer: the optimizer; `why_not` is empty for its worker.
    Attributes:
        rounds: the compiled calls.
        at_once: the largest number of train batches in one call.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._worker = optimizer, optimizer.local_worker
        ((self._policy_id, policy),) = optimizer.policies.items()
        sampler, config = self._worker.sampler, optimizer.config
        assert isinstance(sampler, CompiledSampler)
        assert isinstance(policy, JaxPolicy)
        self._policy, steps = policy, counted_steps(sampler, config)
        fragments = -(-config.train_batch_size // steps)
        self.rounds, self._steps_of_round = FreshRounds(sampler, policy, fragments), fragments * steps
        most = _MOST_INDICES // (self.rounds.rows_of_round * policy.plan.epochs)
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
                self.rounds.sampler.taken_back()
                self._go_back(drawn[0])
                raise
        if left < len(drawn):
            self._go_back(drawn[left])
        return finite

    def _go_back(self, drawn: _Drawn) -> None:
        """Restores the random generators to before the draws of a round."""
        _, self._policy.acting_rng.bit_generator.state, self._policy.learning_rng.bit_generator.state = drawn

    def _draw(self) -> list[_Drawn]:
        optimizer, size = self._optimizer, self._steps_of_round
        acting, learning = self._policy.acting_rng.bit_generator, self._policy.learning_rng.bit_generator
        drawn = []
        for number in range(optimizer.rounds_left(size, 1 if self._numbers_adapt else self.at_once)):
            self._worker.set_timestep(optimizer.steps + number * size)
            states = acting.state, learning.state
            drawn.append(_Drawn(self.rounds.draw(), *states))
        return drawn

    def _learn_from(self, drawn: Sequence[Round]) -> tuple[int, bool]:
        """`(the number of valid rounds, whether all numbers are finite)`; if a round is not valid, nothing changes.

        A round is not valid if its numbers are not finite, or if an earlier round has changed `policy.numbers`, such as
        a KL coefficient, which the host adapts.
        """
        optimizer, rounds, policy = self._optimizer, self.rounds, self._policy
        found = rounds.called((), drawn, 0, self.at_once)
        if not found.finite:
            rounds.sampler.taken_back()
            return rounds.made - 1, False
        numbers, statistics = policy.numbers, {}
        for number in range(rounds.made):
            learned = found.learned.of(number)
            statistics = policy.reported_after(learned.means(), int(learned.taken))
            if policy.numbers != numbers and number + 1 < rounds.made:
                policy.numbers, self._numbers_adapt = numbers, True
                rounds.sampler.taken_back()
                return number + 1, True
        try:
            rounds.advance(found)
        finally:
            optimizer.count_rounds(rounds.made, env_steps=rounds.env_steps_of_round, agent_steps=rounds.rows_of_round)
            optimizer.stats[self._policy_id] = statistics
        return rounds.made, True


def why_not(worker: RolloutWorker) -> str:
    """Why a worker's train batches cannot stay on the device; empty if they can."""
    if found := why_only_on_host(worker):
        return found
    (policy,) = worker.policies.values()
    assert isinstance(policy, JaxPolicy)
    if policy.algorithm.sees_all_agents:
        return "a centralized critic"
    return why_not_traced(policy.algorithm)
