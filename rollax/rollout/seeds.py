"""Seeds of sub-environments and policies, and the ids and numbers of episodes, in each process."""

from __future__ import annotations

import numpy as np

# Ids of episodes and trajectories count up from (worker, restart, 0), so each is unique.
_BITS_OF_WORKERS, _BITS_OF_RESTARTS = 48, 32


def first_ids(worker_index: int, restarts: int) -> tuple[int, int]:
    """The first id of episodes and trajectories, and the number of the first episode, on which seeds depend."""
    first_episode = restarts << _BITS_OF_RESTARTS
    return (worker_index << _BITS_OF_WORKERS) + first_episode, first_episode


def episode_number(episode_id: int) -> int:
    """The number of an episode for its random choices: the driver, worker 0, has the numbers of worker 1."""
    worker, number = divmod(episode_id, 1 << _BITS_OF_WORKERS)
    return (max(worker, 1) - 1 << _BITS_OF_WORKERS) + number


def first_env(worker_index: int, num_envs: int) -> int:
    """The number of a worker's first sub-environment in the run; worker 0, the driver, has the number of worker 1."""
    return (max(worker_index, 1) - 1) * num_envs


def env_seed(seed: int, env: int, episode: int) -> int:
    """The seed of the first reset of sub-environment `env`, from the run's seed and the number of earlier episodes."""
    return int(np.random.SeedSequence((seed, env, episode)).generate_state(1)[0]) >> 1  # signed in ale-py


def policy_seed(seed: int | None, process: int, restarts: int, number: int) -> int | None:
    """The seed of a policy: the config's seed for the first policy of the first process, before a restart."""
    if seed is None or not (number or process or restarts):
        return seed
    return int(np.random.SeedSequence((seed, process, number, restarts)).generate_state(1)[0])
