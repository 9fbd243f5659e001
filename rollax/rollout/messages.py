"""Messages between the learning process and the workers that sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollax.batch import MultiAgentBatch
from rollax.rollout.filters import State, merged
from rollax.rollout.metrics import EpisodeList


@dataclass(frozen=True, slots=True)
class Update:
    """Weights and filters that workers use from now on.

    Args:
        version: number of updates of the weights so far.
        timestep: steps trained on so far.
        weights: policy id -> weights.
        filters: policy id -> state of its observation filter.
        filters_set: policy id -> how often that filter was replaced by `set_filters`; workers replace theirs too.
    """

    version: int
    timestep: int
    weights: Mapping[str, Any]
    filters: Mapping[str, Any]
    filters_set: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A fragment that a worker has sampled, with its episodes, filters and times.

    Args:
        worker_index: the worker.
        version: version of the weights that chose its actions.
        batch: the rows by policy; empty with gradients; None from `sample_apart`, which returns the rows separately.
        env_steps: number of environment steps in it.
        agent_steps: number of sampled rows.
        episodes: episodes that ended in it.
        filters: policy id -> statistics of its observation filter since the last rollout, or its whole state.
        whole_filters: `filters` are whole states; a single worker sends these until it is restarted, because merged
            statistics are rounded.
        sample_s: seconds of sampling.
        gradients: policy id -> `(gradients, statistics)` over its rows; empty if rows were requested.
        gradients_s: seconds of computing them.
        dropped_steps: environment steps that this worker has dropped since the last rollout because they were too old
            or too many.
        filters_set: that of the update whose filters were continued.
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
        """This rollout, with the statistics of an earlier one in its filters, except in those that were set since."""
        if self.whole_filters:
            return self
        filters = dict(self.filters)
        for policy_id, state in earlier.filters.items():
            if earlier.filters_set.get(policy_id, 0) == self.filters_set.get(policy_id, 0):
                filters[policy_id] = merged(state, filters[policy_id])
        return replace(self, filters=filters)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Directions to evaluate: the candidates θ + σ ε_k and θ - σ ε_k of each, θ being the policy's parameters.

    Args:
        seed, generation: determine the directions, episodes and action noise.
        indices: [n] the numbers k of the directions.
        noise_stdev: σ.
        episodes: number of episodes of each candidate.
        shared_starts: whether the episodes of both sides of a direction have the same seeds.
        action_noise: standard deviation of the noise added to actions; not 0 only for a Box.
        sign_rewards: whether a return is the sum of the signs of the rewards.
        reward_offset: added to each reward of a return, before its sign is taken or it is clipped.
    """

    seed: int
    generation: int
    indices: np.ndarray
    noise_stdev: float
    episodes: int = 1
    shared_starts: bool = True
    action_noise: float = 0.0
    sign_rewards: bool = False
    reward_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class CandidateReturns:
    """The returns of the candidates of some directions.

    Args:
        worker_index: the worker.
        indices: [n] the numbers of the directions.
        returns: [n, 2] mean returns of both sides.
        lengths: [n] environment steps of all episodes of a direction.
        episodes: episodes by direction; in each, those of the first side, then of the second.
        filters: for each episode, the statistics of the observations that were acted on.
        sample_s: seconds of playing.
    """

    worker_index: int
    indices: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    episodes: EpisodeList
    filters: list[State]
    sample_s: float
