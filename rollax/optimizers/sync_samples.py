"""`SyncSamplesOptimizer`: gather, concat, learn, broadcast."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.evaluation.rollout_worker import RolloutWorker


class SyncSamplesOptimizer:
    """Each step samples a train batch with the current weights and learns from it.

    Args:
        local_worker: samples, and holds the policies that learn.
        remote_workers: none in this version: sampling is in this process.
        train_batch_size: steps to gather at least.
        policies_to_train: ids of the policies that learn; None for all.
        count_steps_by: "env_steps" or "agent_steps".
    """

    def __init__(
        self,
        local_worker: RolloutWorker,
        remote_workers: Sequence[Any] = (),
        *,
        train_batch_size: int = 200,
        policies_to_train: Sequence[str] | None = None,
        count_steps_by: str = "env_steps",
    ) -> None:
        self.local_worker = local_worker
        self.remote_workers = list(remote_workers)
        self.train_batch_size = train_batch_size
        self.policies_to_train = list(local_worker.policies) if policies_to_train is None else list(policies_to_train)
        self.count_steps_by = count_steps_by
        self.env_steps = 0
        self.agent_steps = 0
        self.timers = {"sample_s": 0.0, "learn_s": 0.0}
        self._stats: dict[str, dict[str, Any]] = {policy_id: {} for policy_id in self.policies_to_train}

    def step(self) -> dict[str, dict[str, Any]]:
        """Gather, learn; returns the statistics of each policy that learns. Those of one without data are None."""
        started = time.perf_counter()
        batch = self._gather()
        sampled = time.perf_counter()
        for policy_id in self.policies_to_train:
            rows = batch.get(policy_id)
            if rows is not None and rows.count:
                self._stats[policy_id] = self.local_worker.policies[policy_id].learn_on_batch(rows) or {}
            else:
                self._stats[policy_id] = dict.fromkeys(self._stats[policy_id])
        self.timers = {"sample_s": sampled - started, "learn_s": time.perf_counter() - sampled}
        return dict(self._stats)

    def _gather(self) -> MultiAgentBatch:
        parts: list[MultiAgentBatch] = []
        gathered = 0
        while gathered < self.train_batch_size:
            part = self.local_worker.sample()
            if isinstance(part, SampleBatch):
                (policy_id,) = self.local_worker.policies
                part = MultiAgentBatch({policy_id: part}, part.env_steps)
            parts.append(part)
            gathered += part.env_steps if self.count_steps_by == "env_steps" else part.agent_steps
            self.env_steps += part.env_steps
            self.agent_steps += part.agent_steps
        return MultiAgentBatch.concat_samples(parts)

    @property
    def steps(self) -> int:
        """Steps trained on so far, in the unit of `count_steps_by`."""
        return self.env_steps if self.count_steps_by == "env_steps" else self.agent_steps
