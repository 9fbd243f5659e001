"""`SyncReplayOptimizer`: sample, store in replay buffers, learn from draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.config import TrainerConfig
from rollax.config.groups import ReplayFields
from rollax.evaluation.messages import Rollout
from rollax.evaluation.remote_workers import RemoteWorkers
from rollax.evaluation.rollout_worker import RolloutWorker
from rollax.optimizers.optimizer import Optimizer, Stats
from rollax.optimizers.replay_buffers import (
    buffers_of,
    check_keys_of_policies,
    inexact_without_buffers,
    learns_in_minibatches,
    rows_of_update,
)
from rollax.optimizers.updates_due import UpdatesDue
from rollax.policy.policy import Policy
from rollax.replay.memory import check_fit_together
from rollax.replay.shard import BufferOfSize, check_states, set_states
from rollax.replay.uniform import UniformReplay
from rollax.state import count, generator_state, section

_MOST_UPDATES = 1024  # in one compiled call


class SyncReplayOptimizer(Optimizer):
    """Each step stores a fragment of each worker, and makes the updates that are due by then.

    Each step stored after the first `learning_starts` makes exactly `training_intensity` updates due; see `UpdatesDue`.
    Steps after which there is nothing to draw make none due. An update includes each policy that has rows to draw; a
    policy whose experience comes late does not catch up. A policy that learns in minibatches makes all updates of a
    step in one call, with rows drawn before the first of them. A policy without `minibatch_size` is called once per
    update, with rows drawn for it.

    Source: Mnih et al. (2015), doi:10.1038/nature14236, Algorithm 1.

    Without `store_buffer_in_checkpoints` a restored run begins with empty buffers, and waits for `learning_starts`
    steps again.

    Args:
        local_worker, remote_workers: see `Optimizer`.
        config: with `ReplayFields`. `train_batch_size` counts where a policy does not name another number of rows.
    Raises:
        ConfigError: a policy's spec changes a key that has one value for all policies.
    """

    config_class = ReplayFields

    def __init__(
        self,
        local_worker: RolloutWorker,
        remote_workers: Sequence[Any] | RemoteWorkers = (),
        config: TrainerConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(local_worker, remote_workers, config)
        check_keys_of_policies(self.config)
        policies = {policy_id: local_worker.policies[policy_id] for policy_id in self.policies_to_train}
        self.buffers = {i: self.buffers_of(policy)(self.config.buffer_size) for i, policy in policies.items()}
        self.num_updates = 0
        self._due = UpdatesDue(self.config.learning_starts, self.config.training_intensity)
        self._rng = np.random.default_rng(self.config.seed)

    def buffers_of(self, policy: Policy) -> BufferOfSize:
        """What makes the buffer of a policy."""
        return buffers_of(policy, self.config)

    def step(self) -> Stats:
        """Broadcast, sample, store, learn."""
        self._broadcast()
        for fragment in self._sample():
            self._store(fragment.batch)
            self._due.add(self._size(fragment))
            self._trained_on(fragment)
            self._sampled(fragment)
        if not any(map(len, self.buffers.values())):
            self._due.skip(self.num_updates)
        due = self._due.updates - self.num_updates
        while due > 0:
            self._update(min(due, _MOST_UPDATES))
            due -= _MOST_UPDATES
        return dict(self.stats)

    def _sample(self) -> list[Rollout]:
        return self._gather(1) if self.remote else [self.local_worker.sample_fragment()]

    def _store(self, batch: MultiAgentBatch) -> None:
        for policy_id, buffer in self.buffers.items():
            rows = batch.get(policy_id)
            if rows is not None and rows.count:
                is_first = not buffer.nbytes
                buffer.add(rows)
                if is_first:
                    check_fit_together({buffer.where: buffer.nbytes for buffer in self.buffers.values()})

    def _update(self, count: int) -> None:
        with self.timings.measured("learn_s"):
            for policy_id, buffer in self.buffers.items():
                if not len(buffer):
                    self.stats[policy_id] = dict.fromkeys(self.stats[policy_id])
                    continue
                policy = self.local_worker.policies[policy_id]
                at_once = count if learns_in_minibatches(policy) else 1
                for _ in range(0, count, at_once):
                    self.stats[policy_id] = self._learn_from(policy, buffer, at_once)
        self.num_updates += count

    def _learn_from(self, policy: Policy, buffer: UniformReplay, count: int) -> dict[str, Any]:
        """Statistics of so many updates, made in one call."""
        drawn = self._drawn(policy, buffer, count)
        stats = dict(policy.learn_on_batch(drawn) or {})
        errors = stats.pop(SampleBatch.TD_ERROR, None)
        if errors is not None:
            buffer.update_priorities(drawn[SampleBatch.INDICES][:: drawn.max_seq_len], errors)
        return stats

    def _drawn(self, policy: Policy, buffer: UniformReplay, count: int) -> SampleBatch:
        """What a policy learns from in `count` updates."""
        rows = rows_of_update(policy, self.config.train_batch_size)
        asked, beta = policy.replayed, self.config.prioritized_replay_beta
        if asked is None:
            return buffer.sample(count * rows, self._rng, beta=beta)
        sequences = count * max(rows // asked.length, 1)
        return buffer.sample_sequences(
            sequences,
            asked.length,
            self._rng,
            burn_in=asked.burn_in,
            beta=beta,
            aligned=True,
        )

    def report(self) -> dict[str, Any]:
        """Transitions that can be drawn, by policy, and the updates made so far."""
        rows = {policy_id: len(buffer) for policy_id, buffer in self.buffers.items()}
        return {"replay": {"rows": rows, "num_updates": self.num_updates}}

    def begin_exactly(self) -> None:
        super().begin_exactly()
        if not self.config.store_buffer_in_checkpoints:
            raise inexact_without_buffers()

    def get_state(self) -> dict[str, Any]:
        """The number of updates, the random state, and the buffers where the config stores them."""
        state = {
            "num_updates": self.num_updates,
            "due": self._due.get_state(),
            "rng": self._rng.bit_generator.state,
        }
        if not self.config.store_buffer_in_checkpoints:
            return state
        return {**state, "buffers": {policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` returned; without stored buffers they are emptied.

        Raises:
            CheckpointError: a buffer or a number does not fit; nothing has changed then.
            ConfigError: a buffer is larger than the memory; the same.
        """
        num_updates = count(state, "num_updates", "optimizer")
        rng = generator_state(state, "rng", "optimizer", self._rng)
        buffers = section({"buffers": {}, **state}, "buffers", "optimizer")
        check_states(self.buffers, buffers)
        self._due.restore(state.get("due"), made=num_updates, kept="buffers" in state)
        set_states(self.buffers, buffers)
        self.num_updates = num_updates
        self._rng.bit_generator.state = rng
