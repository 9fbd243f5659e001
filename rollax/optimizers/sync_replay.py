"""`SyncReplayOptimizer`: sample, store in replay buffers, learn from draws."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.config.replay_groups import ReplayFields
from rollax.core.stored_values import read_count, read_dict
from rollax.optimizers.optimizer import Stats
from rollax.optimizers.replay_optimizer import OTHER_KIND, ReplayOptimizer, random_state
from rollax.replay.buffer_sizes import check_buffers_fit
from rollax.replay.mixed import MixedReplay
from rollax.replay.replay import Replay
from rollax.replay.shard import check_states, set_states
from rollax.rollout.worker import RolloutWorker

log = logging.getLogger("rollax.optimizers")
_MOST_UPDATES = 1024  # the most updates in one compiled call


class SyncReplayOptimizer(ReplayOptimizer):
    """Each step stores a fragment of each worker, and then makes the due updates.

    An update includes each policy that has rows to draw; a policy whose experience begins later does not catch up. A
    policy with `minibatch_size` makes the updates of a step in one call (or one for each 1024 updates), with rows drawn
    before the first update of the call. A policy without `minibatch_size` is called once per update, with rows drawn
    for this update. With an environment in JAX, the constructor returns a `CompiledReplayOptimizer` where that is
    possible.

    Source: Mnih et al. (2015), doi:10.1038/nature14236, Algorithm 1.

    Attributes:
        buffers: policy id -> replay buffer of fresh experience.
        drawn_from: policy id -> the buffer that updates draw from.
    """

    config_class = ReplayFields

    def __new__(cls, local_worker: Any, remote_workers: Any = (), config: Any = None, **keys: Any) -> Any:
        in_jax = isinstance(local_worker, RolloutWorker) and local_worker.samples and local_worker.env.in_jax
        if cls is SyncReplayOptimizer and in_jax and not remote_workers:
            from rollax.optimizers import compiled_replay  # loaded only where it is used

            if reason := compiled_replay.why_not(local_worker):
                log.info("The replay buffer is on the host, because of %s.", reason)
            else:
                return compiled_replay.CompiledReplayOptimizer(local_worker, remote_workers, config, **keys)
        return super().__new__(cls)

    def _set_up(self) -> None:
        super()._set_up()
        self.buffers = {i: self.buffers_of(policy)(self.config.buffer_size) for i, policy in self.policies.items()}
        self.drawn_from: Mapping[str, Replay | MixedReplay] = self.buffers
        self._rng = np.random.default_rng(self.config.seed)
        # Policy id -> updates beyond `num_updates`, made before another policy failed; they are not repeated.
        self._ahead = dict.fromkeys(self.policies, 0)

    def step(self) -> Stats:
        self.broadcast()
        for rollout in self._gather(1) if self.remote else self._awaited(self.local_worker.sample_fragments):
            self._store(rollout.batch)
            self._due.add(self._size(rollout))
            self._trained_on(rollout)
            self._sampled(rollout)
        if not any(map(len, self.drawn_from.values())):
            self._due.skip(self.num_updates)
        due = self._due.updates - self.num_updates
        while due > 0:
            self._update(min(due, _MOST_UPDATES))
            due -= _MOST_UPDATES
            if self.samples_in_background:
                break  # due updates stay due; new samples are stored first
        return dict(self.stats)

    def _store(self, batch: MultiAgentBatch) -> None:
        for policy_id, buffer in self.buffers.items():
            if policy_id in batch:
                is_first = not buffer.nbytes
                buffer.add(batch[policy_id])
                if is_first:
                    check_buffers_fit({buffer.where: buffer.nbytes for buffer in self.buffers.values()})

    def _update(self, count: int) -> None:
        with self.timings.measured("learn_s"):
            for policy_id, buffer in self.drawn_from.items():
                policy, left = self.policies[policy_id], max(count - self._ahead[policy_id], 0)
                if not len(buffer):
                    self._note(policy_id, None)
                    continue
                at_once = 1 if policy.minibatch_size is None else max(left, 1)
                for _ in range(0, left, at_once):
                    self._note(policy_id, self._learn_from(policy_id, buffer, at_once))
                    self._ahead[policy_id] += at_once
        self.num_updates += count
        self._ahead = {policy_id: max(made - count, 0) for policy_id, made in self._ahead.items()}
        self.version += 1

    def _learn_from(self, policy_id: str, buffer: Replay | MixedReplay, count: int) -> dict[str, Any]:
        """Statistics of `count` updates, made in one call."""
        policy, draw = self.policies[policy_id], self.draws[policy_id]
        rows = count * draw.units(self.rows_of_update(policy))
        drawn = buffer.sample(rows, self._rng, beta=self.config.prioritized_replay_beta, draw=draw)
        stats = policy.learn_on_batch(drawn) or {}
        if SampleBatch.TD_ERROR in stats:
            buffer.update_priorities(drawn[SampleBatch.INDICES], stats[SampleBatch.TD_ERROR])
        return stats

    def report(self) -> dict[str, Any]:
        """The drawable transitions by policy, and the updates made so far."""
        rows = {policy_id: len(buffer) for policy_id, buffer in self.drawn_from.items()}
        return {"replay": {"rows": rows, "num_updates": self.num_updates}}

    def get_state(self) -> dict[str, Any]:
        """The counts of updates, the random state, and the buffers if the config stores them."""
        state = {
            "num_updates": self.num_updates,
            "ahead": dict(self._ahead),
            "due": self._due.get_state(),
            "rng": self._rng.bit_generator.state,
        }
        if not self.config.store_buffer_in_checkpoints:
            return state
        return {**state, "buffers": {policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; buffers that are not stored are emptied.

        Raises:
            CheckpointError: a buffer or a number does not fit.
            ConfigError: a buffer does not fit into the memory.
        """
        num_updates = read_count(state, "num_updates", "optimizer")
        rng = random_state(state, "rng", "choices", self._rng)
        stored = {**dict.fromkeys(self.policies, 0), **read_dict({"ahead": {}, **state}, "ahead", "optimizer")}
        ahead = {policy_id: read_count(stored, policy_id, "optimizer: ahead") for policy_id in self.policies}
        buffers, rows = (read_dict({name: {}, **state}, name, "optimizer") for name in ("buffers", "rows"))
        check_states(self.buffers, buffers)
        due = self._restored_due(state, num_updates, kept="buffers" in state)
        set_states(self.buffers, buffers)
        self._due, self.num_updates, self._ahead = due, num_updates, ahead
        self._rng.bit_generator.state = rng
        if rows:
            log.warning(OTHER_KIND, "on the host")
