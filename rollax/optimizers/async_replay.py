"""`AsyncReplayOptimizer`: workers sample, shards store and draw, a thread learns, all at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.config.off_policy_groups import AsyncReplayFields
from rollax.core.stored_values import read_count
from rollax.optimizers.learner_thread import LearnerThread, LearnsInThread
from rollax.optimizers.optimizer import POLL_S, Stats
from rollax.optimizers.replay_optimizer import ReplayOptimizer, random_state
from rollax.optimizers.replay_shards import Drawn, ReplayShards, shard_actors, shard_capacities
from rollax.policy.policy import Policy
from rollax.processes.failure_rules import FailureRules
from rollax.replay.shard import Errors, ReplayShard, ShardSettings
from rollax.rollout.remote_workers import Reply

_ADDS_AHEAD = 8  # fragments that may wait for each shard before sampling pauses


class AsyncReplayOptimizer(LearnsInThread, ReplayOptimizer):
    """Workers send fragments to replay shards, shards send draws to a learner, which returns TD errors to the shards.

    The driver passes references: rows reach the driver only when they are drawn. A draw comes from one shard and serves
    `updates_per_draw` updates, which run in one compiled call (one call per update for a policy without
    `minibatch_size`). The priorities of a draw date from before the first of these updates. A policy is updated only by
    draws from shards that have rows of it: policies that are spread unevenly over the workers get fewer updates.

    The learner makes only updates that are due. Sampling pauses while an update is due and the queue is full: the
    learner lags by at most the queue and the fragments already requested. The learner pauses between two steps.
    Without remote workers a step samples and learns in turn, in the caller's thread, with one shard in this process.

    Source: Horgan et al. (2018), arXiv:1803.00933, Algorithms 1 and 2. Deviations: the bounds above; shards are drawn
    from in proportion to their priorities; new rows overwrite the oldest ones one by one.
    """

    config_class = AsyncReplayFields

    def _set_up(self) -> None:
        super()._set_up()
        own = self.config
        self._steps_per_sync = own.max_weight_sync_delay * max(len(self.remote), 1)
        self._requested = 0  # updates whose draws are made or requested
        self._waiting: deque[Drawn] = deque()  # draws that wait for room in the queue
        self._learned: deque[tuple[Drawn, Errors]] = deque()  # errors to be returned to the shards
        self._synced_steps = 0
        self._paused: list[int] = []  # worker indices, one entry for each request to be made
        self._begun = False
        self._learner = LearnerThread(self._learn_from, own.learner_queue_size, self.timings)
        capacities = shard_capacities(own.buffer_size, own.num_replay_shards, max(len(self.remote), 1))
        actors = shard_actors(self._shard_settings(capacities), remote=bool(self.remote))
        self.shards = ReplayShards(actors, len(capacities), FailureRules.of(own), own.seed)

    def _shard_settings(self, capacities: Sequence[int]) -> ShardSettings:
        buffers = {policy_id: self.buffers_of(policy) for policy_id, policy in self.policies.items()}
        sizes = {
            policy_id: self.draws[policy_id].units(self.rows_of_update(p)) for policy_id, p in self.policies.items()
        }
        beta, seed = self.config.prioritized_replay_beta, self.config.seed
        settings = ShardSettings(buffers, capacities, self.draws, sizes, beta, seed)
        for index in range(1, len(capacities) + 1):
            ReplayShard(settings, index)  # raises its errors in this process; takes no memory yet
        return settings

    def step(self) -> Stats:
        """Passes on samples, draws, errors and weights until as many new fragments are stored as there are workers."""
        if not self.remote:
            return self._serial_step()
        self._begin()
        with self._learning():
            stored = 0
            while stored < max(len(self.remote), 1):
                self._wait()
                replies = self.remote.collect(0.0)
                if not replies:
                    self._check_waits()
                stored += self._store(replies)
                self._feed()
                self._broadcast_newest()
                self._request_fragments()
        return dict(self.stats)

    def stop(self) -> None:
        super().stop()
        self.shards.stop()

    def report(self) -> dict[str, Any]:
        """The drawable transitions by policy, the updates so far, and the health of the shards."""
        health = self.shards.health()
        return {"replay": {"rows": self.shards.rows, "num_updates": self.num_updates, "shards": health}}

    def get_state(self) -> dict[str, Any]:
        """The progress of the updates, and the contents of the shards if the config stores them."""
        self._return_errors()
        choices = self.shards.choices.bit_generator.state
        state = {"num_updates": self.num_updates, "due": self._due.get_state(), "choices": choices}
        return {**state, "shards": self.shards.get_state()} if self.config.store_buffer_in_checkpoints else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, and drops earlier draws; a state without contents empties the shards.

        Raises:
            CheckpointError: a shard's state does not fit, or the number of shards differs; nothing has changed then.
            ConfigError: a buffer does not fit into the memory (nothing has changed then), or the sum of all does not.
            WorkerError: a shard cannot be called.
        """
        num_updates = read_count(state, "num_updates", "optimizer")
        choices = random_state(state, "choices", "rng", self.shards.choices)
        due = self._restored_due(state, num_updates, kept="shards" in state)
        if "shards" in state:
            self.shards.set_state(state["shards"])
        else:
            self.shards.empty()
        self._due = due
        self._learner.stop()
        self._waiting.clear()
        self._learned.clear()
        self._weights.clear()
        self.shards.forget_all()
        self.num_updates = self._requested = num_updates
        self.shards.choices.bit_generator.state = choices
        self._begun = False

    def _broadcast_newest(self) -> None:
        super()._broadcast_newest()
        idle = self._due.updates - self.num_updates < self.config.updates_per_draw
        if idle and self.steps - self._synced_steps >= self._steps_per_sync:
            # Without updates no weights are broadcast, so that timestep and filters would not reach the workers.
            self._synced_steps = self.steps
            self._publish(self.version, self.local_worker.get_weights())

    def _serial_step(self) -> Stats:
        """Samples, stores, and makes the updates that are due."""
        self.local_worker.set_timestep(self.steps)
        self._recount_requested()
        rollout = self._awaited(self.local_worker.sample_fragment)
        self._store([Reply(self.local_worker.worker_index, (rollout, rollout.batch))])
        self._take_draws()
        while self._is_due() and self._request_draw():
            self._take_draws()
            self._learn_from(self._waiting.popleft())
            self._return_errors()
        return dict(self.stats)

    def _begin(self) -> None:
        """Requests fragments from the workers; the first time, and after a restore, weights are broadcast."""
        self.local_worker.set_timestep(self.steps)
        if not self._begun:
            self.broadcast()
            self._synced_steps = self.steps
            self._begun = True
        self._recount_requested()
        self._paused = self.remote.short_of(self.config.max_requests_in_flight_per_worker)
        self._request_fragments()

    def _recount_requested(self) -> None:
        """Counts the updates of requested draws again, as an interrupted step may have dropped or not counted some."""
        self.shards.take_lost_draws()
        draws = self.shards.draws_in_flight + len(self._waiting) + len(self._learner)
        self._requested = self.num_updates + self.config.updates_per_draw * draws

    def _wait(self) -> None:
        """Waits until a worker, a shard or the learner has something to pass on."""
        self._learner.check()
        if self._is_behind() and not self.shards.draws_in_flight:
            self._learner.wait_for_update(POLL_S)  # makes room for another draw
            return
        with self.timings.measured("wait_s"):
            self.shards.wait(self.remote.references, POLL_S)

    def _store(self, replies: Sequence[Reply]) -> int:
        """Passes fragments on to the shards; the workers that sampled them get another request later."""
        for index, (rollout, rows) in replies:
            self.shards.add(index, rows)
            self._due.add(self._size(rollout))
            self._sampled(rollout)
            self._trained_on(rollout)
            if self.remote:
                self._paused.append(index)
        return len(replies)

    def _feed(self) -> None:
        """Passes draws to the learner and errors back to the shards, and requests new draws."""
        self._take_draws()
        while self._waiting and self._learner.put(self._waiting[0], 0.0):
            self._waiting.popleft()
            self.timings.queue_depths.add(len(self._learner))
        self._return_errors()
        while self._is_due() and self._has_room() and self._request_draw():
            pass

    def _take_draws(self) -> None:
        self._waiting += self.shards.collect()
        self._requested -= self.config.updates_per_draw * self.shards.take_lost_draws()

    def _return_errors(self) -> None:
        while self._learned:
            self.shards.give_errors(*self._learned.popleft())

    def _request_fragments(self) -> None:
        """Requests more from workers that have replied, unless the learner or the shards have to catch up first."""
        if self._is_behind() or self.shards.adds_in_flight >= _ADDS_AHEAD * self.shards.count:
            return
        paused, self._paused = self._paused, []
        for index in paused:
            self.remote.request(index, "sample_apart")

    def _request_draw(self) -> bool:
        """Requests a draw; False if nothing is stored yet."""
        requested = self.shards.request_draw(self.config.updates_per_draw)
        self._requested += self.config.updates_per_draw * requested
        if not requested and not self.shards.adds_in_flight:
            self._due.skip(self._requested)
        return requested

    def _is_due(self) -> bool:
        """Whether another draw is due."""
        return self._due.updates - self._requested >= self.config.updates_per_draw

    def _has_room(self) -> bool:
        return len(self._learner) + len(self._waiting) + self.shards.draws_in_flight < self.config.learner_queue_size

    def _is_behind(self) -> bool:
        return self._is_due() and not self._has_room()

    def _learn_from(self, drawn: Drawn) -> None:
        """Makes the updates of one draw; with remote workers this runs in the learner thread."""
        errors: dict[str, tuple[Any, Any]] = {}
        with self.timings.measured("learn_s"):
            for policy_id, policy in self.policies.items():
                rows = drawn.batches.get(policy_id)
                stats = None
                if rows is not None:
                    stats = self._learn_from_rows(policy, rows)
                    if SampleBatch.TD_ERROR in stats:
                        errors[policy_id] = rows[SampleBatch.INDICES], stats[SampleBatch.TD_ERROR]
                self._note(policy_id, stats)
        self.num_updates += self.config.updates_per_draw
        self.version += self.config.updates_per_draw
        self._learned.append((drawn, errors))
        if self.remote and self.steps - self._synced_steps >= self._steps_per_sync:
            self._synced_steps = self.steps
            self._hand_over_weights()

    def _learn_from_rows(self, policy: Policy, rows: SampleBatch) -> dict[str, Any]:
        """Statistics of the last update of a draw, and the errors of all its rows if the policy reports them."""
        size = len(rows) // self.config.updates_per_draw if policy.minibatch_size is None else len(rows)
        found = [dict(policy.learn_on_batch(part) or {}) for part in rows.minibatches(size)]
        if SampleBatch.TD_ERROR in found[-1]:
            found[-1][SampleBatch.TD_ERROR] = np.concatenate([stats[SampleBatch.TD_ERROR] for stats in found])
        return found[-1]
