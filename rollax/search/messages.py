"""What workers are requested to play, and what they return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollax.core.running_statistics import State
from rollax.rollout.metrics import EpisodeList


@dataclass(frozen=True, slots=True)
class Candidates:
    """Directions ε_k to evaluate, by the candidates θ + σ ε_k and θ - σ ε_k; θ are the policy's parameters.

    Args:
        seed, generation: determine the directions, episodes and action noise.
        indices: [n] the numbers k of the directions.
        noise_stdev: σ.
        episodes: number of episodes of each candidate.
        shared_starts: whether the episodes of both sides of a direction have the same seeds.
        action_noise: standard deviation of the noise added to actions; above 0 only for a Box.
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
        episodes: episodes by direction; for each direction, the first side's episodes, then the second side's.
        filters: for each episode, the statistics of the observations that were acted on; [] without a filter.
        sample_s: seconds of playing.
    """

    worker_index: int
    indices: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    episodes: EpisodeList
    filters: list[State]
    sample_s: float
