"""Messages between the learning process and the workers that sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollax.batch import MultiAgentBatch
from rollax.core.running_statistics import merged
from rollax.rollout.metrics import EpisodeList


@dataclass(frozen=True, slots=True)
class Update:
    """Weights and running statistics that workers use from now on.

    Args:
        version: number of updates of the weights so far.
        timestep: steps trained on so far.
        weights: policy id -> weights.
        filters: policy id -> state of its running statistics: of its observation filter, and of its algorithm.
        filters_set: policy id -> how often `set_filters` replaced its statistics. A worker with another number
            replaces its own statistics, too.
    """

    version: int
    timestep: int
    weights: Mapping[str, Any]
    filters: Mapping[str, Any]
    filters_set: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A fragment that a worker has sampled, with its episodes, running statistics and times.

    Args:
        worker_index: the index of the worker.
        version: version of the weights that chose the actions.
        batch: the rows by policy; empty with gradients; None from `sample_apart`, which returns the rows separately.
        env_steps: number of environment steps in the fragment.
        agent_steps: number of sampled rows.
        episodes: episodes that ended in the fragment.
        filters: policy id -> its running statistics since the last rollout, or their whole state.
        whole_filters: whether `filters` are whole states. A single remote worker sends whole states until it is
            restarted, because merging would round them.
        sample_s: seconds of sampling.
        gradients: policy id -> `(gradients, statistics)` over its rows; empty if rows were requested.
        gradients_s: seconds of computing the gradients.
        dropped_steps: environment steps that this worker has dropped since the last rollout because they were too old
            or too many.
        filters_set: policy id -> how often its statistics had been set when `filters` were collected.
    """

    worker_index: int
    version: int
    batch: MultiAgentBatch | Any
    env_steps: int
    agent_steps: int
    episodes: EpisodeList
    filters: Mapping[str, Any]
    whole_filters: bool
    sample_s: float
    gradients: Mapping[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    gradients_s: float = 0.0
    dropped_steps: int = 0
    filters_set: Mapping[str, int] = field(default_factory=dict)

    def with_statistics_of(self, earlier: Rollout) -> Rollout:
        """This rollout with the running statistics of an earlier one added, unless they were set in between."""
        if self.whole_filters:
            return self
        filters = dict(self.filters)
        for policy_id, state in earlier.filters.items():
            if earlier.filters_set.get(policy_id, 0) == self.filters_set.get(policy_id, 0):
                filters[policy_id] = merged(state, filters[policy_id])
        return replace(self, filters=filters)
