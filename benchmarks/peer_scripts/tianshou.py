"""Tianshou's prioritized buffer (Numba sum tree), full with a million transitions."""

import warnings

import numpy as np

from benchmarks.data import ALPHA, BATCH, BETA, CAPACITY, errors, segments
from benchmarks.protocol import Link, run, versions

warnings.simplefilter("ignore")
from tianshou.data import Batch, PrioritizedVectorReplayBuffer  # noqa: E402


def replay(link: Link, adds: bool) -> None:
    """Sample 512 rows and update their priorities; with `adds`, add 512 before."""
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
        if adds:
            add()
        _, indices = buffer.sample(BATCH)
        buffer.update_weight(indices, next_errors())
        return BATCH

    for _ in range(CAPACITY // BATCH + 1):
        add()
    link.serve_rates(work, versions=versions("tianshou", "numba", "numpy"))


if __name__ == "__main__":
    run(replay)
