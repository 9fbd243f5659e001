"""Tianshou's prioritized buffer (Numba sum tree), full, of a million transitions: add, sample, update, 512 at a time."""

import argparse
import warnings

import numpy as np

from benchmarks.protocol import serve_rates, versions
from benchmarks.replay_rows import ALPHA, BATCH, BETA, CAPACITY, STEPS, errors, pieces

warnings.simplefilter("ignore")
from tianshou.data import Batch, PrioritizedVectorReplayBuffer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=("all", "sample"), required=True)
    args = parser.parse_args()

    episodes = pieces()
    # One sub-buffer for each of the episodes that run side by side: a step of all of them is added at once.
    buffer = PrioritizedVectorReplayBuffer(CAPACITY, len(episodes), alpha=ALPHA, beta=BETA)
    next_errors = errors()
    steps = [
        Batch(
            obs=np.stack([piece["obs"][step] for piece in episodes]),
            obs_next=np.stack([piece["obs"][step + 1] for piece in episodes]),
            act=np.stack([piece["actions"][step] for piece in episodes]),
            rew=np.stack([piece["rewards"][step] for piece in episodes]),
            terminated=np.stack([piece["terminateds"][step] for piece in episodes]),
            truncated=np.zeros(len(episodes), np.bool_),
            info=Batch(),
        )
        for step in range(STEPS)
    ]

    def add() -> None:
        for step in steps:
            buffer.add(step)

    def work() -> int:
        if args.work == "all":
            add()
        _, indices = buffer.sample(BATCH)
        buffer.update_weight(indices, next_errors())
        return BATCH

    for _ in range(CAPACITY // BATCH + 1):
        add()
    serve_rates(work, versions=versions("tianshou", "numba", "numpy"))


if __name__ == "__main__":
    main()
