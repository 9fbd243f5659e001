"""RLlib's prioritized buffers, full with a million transitions: add, sample and update priorities of 512 rows."""

import argparse
from collections.abc import Callable

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_replay_buffer import PrioritizedReplayBuffer

from benchmarks.protocol import serve_rates, versions
from benchmarks.replay_rows import ALPHA, BATCH, BETA, CAPACITY, STEPS, errors, segments


def of_episodes(next_errors: Callable[[], np.ndarray]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns the functions that add, and that sample and update, for the buffer of the new API stack."""
    buffer = PrioritizedEpisodeReplayBuffer(CAPACITY, alpha=ALPHA)
    episodes = segments()

    def add() -> None:
        buffer.add(
            [
                SingleAgentEpisode(
                    observations=list(segment["obs"]),
                    actions=list(segment["actions"]),
                    rewards=list(segment["rewards"]),
                    terminated=True,
                    len_lookback_buffer=0,
                )
                for segment in episodes
            ]
        )

    def sample() -> None:
        buffer.sample(num_items=BATCH, n_step=1, beta=BETA)
        buffer.update_priorities(next_errors())

    return add, sample


def of_timesteps(next_errors: Callable[[], np.ndarray]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns the same functions for the buffer of the old API stack."""
    buffer = PrioritizedReplayBuffer(CAPACITY, storage_unit="timesteps", alpha=ALPHA)
    episodes = segments()
    columns = {name: np.concatenate([segment[name][:STEPS] for segment in episodes]) for name in episodes[0]}
    columns["new_obs"] = np.concatenate([segment["obs"][1:] for segment in episodes])

    def add() -> None:
        buffer.add(SampleBatch(columns))

    def sample() -> None:
        batch = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(batch["batch_indexes"], next_errors())

    return add, sample


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=("all", "sample"), required=True)
    parser.add_argument("--buffer", choices=("episodes", "timesteps"), required=True)
    args = parser.parse_args()

    add, sample = (of_episodes if args.buffer == "episodes" else of_timesteps)(errors())

    def work() -> int:
        if args.work == "all":
            add()
        sample()
        return BATCH

    for _ in range(CAPACITY // BATCH + 1):
        add()
    serve_rates(work, versions=versions("ray", "numpy"))


if __name__ == "__main__":
    main()
