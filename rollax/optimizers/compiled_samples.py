"""`DeviceBatches`: train batches that stay on the device, for environments in JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rollax.optimizers.compiled_rounds import Round, why_only_on_host
from rollax.optimizers.fresh_rounds import FreshRounds
from rollax.optimizers.optimizer import Optimizer
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.traced_columns import why_only_on_host as why_not_traced
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.worker import RolloutWorker

_MOST_ROUNDS = 64
_MOST_INDICES = 1 << 22  # of the minibatches of one call


class _Drawn(NamedTuple):
    """What was drawn for a round, and the states of the random generators before it."""

    round: Round
    acting: Any
    learning: Any


class DeviceBatches:
    """Samples train batches and learns from them, in one compiled call for all train batches of an iteration.

    The numbers are the same as on the host, up to rounding, but that statistics are those of the last batch of a call.
    `timers` has the time of both sampling and learning in `learn_s`.

    Args:
        optimizer: the optimizer, whose worker `why_not` does not exclude.
    Attributes:
        rounds: the compiled calls.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._worker = optimizer, optimizer.local_worker
        ((self._policy_id, policy),) = optimizer.policies.items()
        sampler, config = self._worker.sampler, optimizer.config
        assert isinstance(sampler, CompiledSampler)
        assert isinstance(policy, JaxPolicy)
        self._policy, by_env = policy, config.count_steps_by == "env_steps"
        size = sampler.fragment_length * sampler.env.num_envs * (1 if by_env else len(sampler.env.agents))
        self.rounds = FreshRounds(sampler, policy, -(-config.train_batch_size // size))
        self._steps_of_round = self.rounds.env_steps_of_round if by_env else self.rounds.rows_of_round
        rounds = -(-config.timesteps_per_iteration // self._steps_of_round)
        most = _MOST_INDICES // (self.rounds.rows_of_round * policy.plan.epochs)
        # The numbers of a policy adapt on the host, after each batch; a number that is not used is 0.
        self.at_once = 1 if any(policy.numbers.values()) else max(min(rounds, _MOST_ROUNDS, most), 1)

    def step(self) -> bool:
        """Learns from the train batches of an iteration, at most up to `stop_at`.

        Returns:
            False if numbers are not finite: batches before that are learned from, and the next one on the host will
            have the same random numbers, and raise the error.
        """
        drawn, policy = self._draw(), self._policy
        with self._optimizer.timings.measured("learn_s"):
            if self._learn_from([one.round for one in drawn]):
                return True
            if finite := self.rounds.made - 1:
                self._learn_from([one.round for one in drawn[:finite]])  # once more, without the last one
        _, policy.acting_rng.bit_generator.state, policy.learning_rng.bit_generator.state = drawn[finite]
        return False

    def _draw(self) -> list[_Drawn]:
        optimizer, size = self._optimizer, self._steps_of_round
        left = math.inf if math.isinf(optimizer.stop_at) else -(-(optimizer.stop_at - optimizer.steps) // size)
        acting, learning = self._policy.acting_rng.bit_generator, self._policy.learning_rng.bit_generator
        drawn = []
        for number in range(int(max(min(self.at_once, left), 1))):
            self._worker.set_timestep(optimizer.steps + number * size)
            states = acting.state, learning.state
            drawn.append(_Drawn(self.rounds.draw(), *states))
        return drawn

    def _learn_from(self, drawn: Sequence[Round]) -> bool:
        """Makes and counts rounds, and returns True; if numbers are not finite, nothing changes."""
        optimizer, rounds = self._optimizer, self.rounds
        found = rounds.called((), drawn, 0, self.at_once)
        if not found.finite:
            rounds.sampler.taken_back()
            return False
        rounds.advance(found)
        optimizer.count_rounds(rounds.made, env_steps=rounds.env_steps_of_round, agent_steps=rounds.rows_of_round)
        statistics = self._policy.reported_after(found.learned.means(), int(found.learned.taken))
        optimizer.stats[self._policy_id] = statistics
        return True


def why_not(worker: RolloutWorker) -> str:
    """Why a worker's train batches cannot stay on the device; empty if they can."""
    if found := why_only_on_host(worker):
        return found
    (policy,) = worker.policies.values()
    assert isinstance(policy, JaxPolicy)
    if policy.algorithm.sees_all_agents:
        return "a centralized critic"
    return why_not_traced(policy.algorithm)
