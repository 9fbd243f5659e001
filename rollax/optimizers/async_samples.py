"""`AsyncSamplesOptimizer`: remote workers sample while a learner thread learns."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import MultiAgentBatch
from rollax.config.off_policy_groups import AsyncSamplesFields
from rollax.core.stored_values import generator_state, read_count
from rollax.optimizers.learner_thread import LearnerThread, LearnsInThread
from rollax.optimizers.optimizer import POLL_S, Stats
from rollax.rollout.messages import Rollout


class _TrainBatch(NamedTuple):
    rollouts: list[Rollout]  # fresh rollouts, whose steps are counted
    replayed: list[Rollout]


class AsyncSamplesOptimizer(LearnsInThread):
    """Remote workers sample fragments while a thread learns from earlier fragments.

    Samples come from policies that are some updates old. The lag is bounded by the requests in flight and the queue,
    both of fixed size, and is reported. When the queue is full, sampling waits, so no sample is dropped; workers that
    sample in the background do not wait, and drop their oldest samples. Between two steps the learner is paused, and
    its state may be read and written. Without remote workers a step samples and learns in turn, in the caller's thread.

    Source: Espeholt et al. (2018), arXiv:1802.01561, section 3.
    """

    config_class = AsyncSamplesFields
    gives_fragments = True

    def _set_up(self) -> None:
        super()._set_up()
        self._recent: deque[Rollout] = deque(maxlen=self.config.replay_buffer_num_slots)
        self._rng = np.random.default_rng(self.config.seed)  # chooses what is replayed
        self._gathered: list[Rollout] = []
        self._waiting: _TrainBatch | None = None  # a train batch that waits for room in the queue
        self._learner = LearnerThread(self._learn_from, self.config.learner_queue_size, self.timings)
        self.replayed_steps = 0

    def step(self) -> Stats:
        """Passes on samples and weights until the learner has finished one more train batch."""
        self.local_worker.set_timestep(self.steps)
        if not self.remote:
            return self._serial_step()
        learner, before = self._learner, self._learner.updates
        if not self.remote.requests_in_flight:
            self.broadcast()
        for index in self.remote.short_of(self.config.max_requests_in_flight_per_worker):
            self.remote.request(index, "sample_fragment")
        with self._learning():
            while learner.updates == before:
                learner.check()
                self._exchange(learner)
        return dict(self.stats)

    def begin_exactly(self) -> None:
        super().begin_exactly()
        self._drop_samples()

    def get_state(self) -> dict[str, Any]:
        """The random state of the replay, and the number of replayed steps; samples are not stored."""
        return {"choices": self._rng.bit_generator.state, "replayed_steps": self.replayed_steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, and drops earlier samples.

        Raises:
            CheckpointError: a value is missing or wrong; nothing has changed then.
        """
        choices = generator_state(state, "choices", "optimizer", self._rng)
        replayed_steps = read_count(state, "replayed_steps", "optimizer")
        self.stop()
        self._drop_samples()
        self._rng.bit_generator.state = choices
        self.replayed_steps = replayed_steps

    def _drop_samples(self) -> None:
        self._gathered, self._waiting = [], None
        self._recent.clear()
        self._weights.clear()

    def _serial_step(self) -> Stats:
        while (train_batch := self._take_train_batch()) is None:
            rollout = self._awaited(self.local_worker.sample_fragment)
            self._sampled(rollout)
            self._gathered.append(rollout)
        self._learn_from(train_batch)
        return dict(self.stats)

    def _exchange(self, learner: LearnerThread) -> None:
        """Passes fragments to the learner, and weights and requests to the workers."""
        if self._waiting is None:
            with self.timings.measured("wait_s"):
                replies = self.remote.collect(POLL_S)
            if not replies:
                self._check_waits()
            self._broadcast_newest()
            for index, rollout in replies:
                self.remote.request(index, "sample_fragment")
                self._sampled(rollout)
                self._gathered.append(rollout)
            self._waiting = self._take_train_batch()
        while self._waiting is not None and learner.put(self._waiting, POLL_S):
            self.timings.queue_depths.add(len(learner))
            self._waiting = self._take_train_batch()

    def _take_train_batch(self) -> _TrainBatch | None:
        """The first fragments that fill a train batch, and the fragments replayed with them; None if too few wait."""
        size = 0
        for number, rollout in enumerate(self._gathered, start=1):
            size += self._size(rollout)
            if size >= self.config.train_batch_size:
                fresh, self._gathered = self._gathered[:number], self._gathered[number:]
                train_batch = _TrainBatch(fresh, self._replayed(number))
                self._recent.extend(fresh)
                return train_batch
        return None

    def _replayed(self, fresh: int) -> list[Rollout]:
        number = fresh * self.config.replay_proportion
        count = int(number) + int(self._rng.random() < number % 1)
        if not self._recent:
            return []
        return [self._recent[place] for place in self._rng.integers(len(self._recent), size=count)]

    def _learn_from(self, train_batch: _TrainBatch) -> None:
        """Makes one update of each policy; with remote workers this runs in the learner thread."""
        batches = [rollout.batch for rollout in (*train_batch.rollouts, *train_batch.replayed)]
        self._learn(MultiAgentBatch.concat_samples(batches))
        for rollout in train_batch.rollouts:
            self._trained_on(rollout)
        self.replayed_steps += sum(map(self._size, train_batch.replayed))
        self.version += 1
        if self.remote and self.version % self.config.broadcast_interval == 0:
            self._hand_over_weights()
