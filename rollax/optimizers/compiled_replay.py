"""`CompiledReplayOptimizer`: replay on the device, for environments in JAX: one compiled call samples and learns."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from rollax.config.replay_groups import ReplayFields
from rollax.core.stored_values import read_count, read_dict
from rollax.optimizers.compiled_rounds import counted_steps, rounds_at_once, why_only_on_host
from rollax.optimizers.optimizer import Stats
from rollax.optimizers.replay_optimizer import OTHER_KIND, ReplayOptimizer, random_state
from rollax.optimizers.replay_rounds import ReplayRounds
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.replayed import Draw
from rollax.policy.traced_columns import class_that_changes_rows
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.worker import RolloutWorker

log = logging.getLogger("rollax.optimizers")
_OF_ROWS = ("prepare", "postprocess", "loss_columns")
_MOST_ROUNDS = 1024
_MOST_ROWS_DRAWN = 1 << 22  # of one call


class CompiledReplayOptimizer(ReplayOptimizer):
    """`SyncReplayOptimizer` whose rows stay on the device: a step makes many rounds of an iteration in one call.

    A round samples a fragment, stores it, and makes the due updates, in the same order and with the same schedules and
    counts as a step of `SyncReplayOptimizer`. What differs:

    - Rows are drawn by other random numbers. A row can be drawn only when n steps from it on are stored, even if its
      trajectory ended earlier.
    - Observations are stored as `rollax.optimizers.ring_observations` says. If episodes are shorter than 4 steps on
      average and observations are large, the oldest rows cannot be drawn.
    - `timers` has the time of both sampling and learning in `learn_s`.
    """

    config_class = ReplayFields

    def _set_up(self) -> None:
        super()._set_up()
        ((self._policy_id, policy),) = self.policies.items()
        sampler = self.local_worker.sampler
        assert isinstance(sampler, CompiledSampler)
        assert isinstance(policy, JaxPolicy)
        self._steps_of_round = counted_steps(sampler, self.config)
        updates = math.ceil(self._steps_of_round * self.config.training_intensity)
        self.rounds = ReplayRounds(sampler, policy, self.config, updates)
        drawn = max(updates * (policy.minibatch_size or 1), 1)
        self._at_once = rounds_at_once(self.config, self._steps_of_round, _MOST_ROUNDS, _MOST_ROWS_DRAWN // drawn)

    def step(self) -> Stats:
        rounds, size, worker = self.rounds, self._steps_of_round, self.local_worker
        drawn, made, stored = [], 0, self._due.stored
        for number in range(self.rounds_left(size, self._at_once)):
            worker.set_timestep(self.steps + number * size)
            self._due.add(size)
            if not rounds.can_draw(number):
                self._due.skip(self.num_updates + made)
            updates = min(self._due.updates - self.num_updates - made, rounds.most_updates)
            drawn.append(rounds.draw(updates, number))
            made += updates
        failed = True
        try:
            with self.timings.measured("learn_s"):
                statistics = rounds.run(drawn, self._at_once)
            failed = False
        finally:
            # As on the host, the updates of a round that fails are not counted and stay due.
            whole = max(rounds.made - failed, 0)
            self.num_updates += sum(int(one.learning[0]) for one in drawn[:whole])
            self.count_rounds(rounds.made, env_steps=rounds.env_steps_of_round, agent_steps=rounds.rows_of_round)
            self._due.stored = stored + rounds.made * size  # rounds that an error left out do not count
            if not rounds.taken:  # all rows are lost
                self._due.begin(self.num_updates)
        if statistics is not None:
            self._note(self._policy_id, statistics)
        return dict(self.stats)

    def report(self) -> dict[str, Any]:
        return {
            "replay": {"rows": {self._policy_id: len(self.rounds)}, "num_updates": self.num_updates, "on_device": True}
        }

    def get_state(self) -> dict[str, Any]:
        state = {
            "num_updates": self.num_updates,
            "due": self._due.get_state(),
            "rng": self.rounds.rng.bit_generator.state,
        }
        if not self.config.store_buffer_in_checkpoints:
            return state
        return {**state, "rows": self.rounds.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        num_updates, rng = read_count(state, "num_updates", "optimizer"), self.rounds.rng
        stored = random_state(state, "rng", "choices", rng)
        buffers = read_dict({"buffers": {}, **state}, "buffers", "optimizer")
        other_kind = any(read_dict(buffers, policy_id, "optimizer: buffers") for policy_id in buffers)
        due = self._restored_due(state, num_updates, kept="rows" in state)
        self.rounds.set_state(read_dict({"rows": {}, **state}, "rows", "optimizer"))
        self._due = due
        self.num_updates, rng.bit_generator.state = num_updates, stored
        if other_kind:
            log.warning(OTHER_KIND, "on the device")


def why_not(worker: RolloutWorker) -> str:
    """Why a worker's rows cannot stay on the device; empty if they can."""
    if found := why_only_on_host(worker):
        return found
    (policy,) = worker.policies.values()
    assert isinstance(policy, JaxPolicy)
    config: Any = worker.config
    plan = policy.plan
    reasons = (
        (getattr(policy.config, "n_step", None) is None, "config key 'n_step', None"),
        (config.frame_stack_axis is not None, "config key 'frame_stack_axis'"),
        (type(policy.replayed) is not Draw or bool(policy.replayed.columns), "rows that are not drawn one by one"),
        (bool(policy.replayed_columns), "further columns of rows"),
        (bool(policy.numbers) or plan.stops is not None or plan.epochs > 1, "a plan of several passes"),
        (plan.minibatch_size is None or plan.microbatch_size is not None, "microbatches"),
        (
            class_that_changes_rows(policy.algorithm, _OF_ROWS) is not None,
            "rows that are changed before they are stored or learned from",
        ),
    )
    return next((reason for applies, reason in reasons if applies), "")
