"""Tianshou's prioritized buffer (Numba sum tree), full with a million transitions: add, sample and update 512 rows."""

import argparse
import warnings

import numpy as np

from benchmarks.protocol import serve_rates, versions
from benchmarks.replay_rows import ALPHA, BATCH, BETA, CAPACITY, errors, segments

warnings.simplefilter("ignore")
from tianshou.data import Batch, PrioritizedVectorReplayBuffer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=("all", "sample"), required=True)
    args = parser.parse_args()

    # Each row of a batch belongs to another sub-env, so that one call adds all rows, which is fastest.
    buffer = PrioritizedVectorReplayBuffer(CAPACITY, BATCH, alpha=ALPHA, beta=BETA)
    next_errors, episodes = errors(), segments()
    rows = Batch(
        obs=np.concatenate([segment["obs"][:-1] for segment in episodes]),
        obs_next=np.concatenate([segment["obs"][1:] for segment in episodes]),
        act=np.concatenate([segment["actions"] for segment in episodes]),
        rew=np.concatenate([segment["rewards"] for segment in episodes]),
        terminated=np.concatenate([segment["terminateds"] for segment in episodes]),
        truncated=np.zeros(BATCH, np.bool_),
        info=Batch(),
    )

    def add() -> None:
        buffer.add(rows)

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
