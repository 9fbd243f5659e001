"""Messages between the learning process and the workers that sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollax.batch import MultiAgentBatch
from rollax.evaluation.metrics import EpisodeList


@dataclass(frozen=True, slots=True)
class Update:
    """What workers act with from now on.

    Args:
        version: updates of the weights so far.
        timestep: steps trained on so far.
        weights: policy id -> weights.
        filters: policy id -> state of its observation filter.
    """

    version: int
    timestep: int
    weights: Mapping[str, Any]
    filters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A fragment that a worker has sampled, with its episodes, filters and times.

    Args:
        worker_index: the worker.
        version: of the weights that chose its actions.
        batch: the rows by policy; empty with gradients; None from `sample_apart`, which returns the rows apart.
        env_steps: steps of the environments behind it.
        agent_steps: rows that were sampled.
        episodes: those that ended in it.
        filters: policy id -> what its observation filter has seen since the last rollout, or its whole state.
        whole_filters: `filters` are whole states: a single worker sends those, which is exact; sums are rounded.
        sample_s: seconds of sampling.
        gradients: policy id -> `(gradients, statistics)` over its rows; empty where rows were requested.
        gradients_s: seconds of computing them.
        dropped_steps: environment steps that this worker has dropped since the last rollout, as too old or too many.
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
