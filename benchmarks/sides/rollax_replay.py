"""rollax's `PrioritizedReplay`, full with a million transitions: add, sample and update priorities of 512 rows."""

import argparse

import numpy as np

from benchmarks.protocol import serve_rates, versions
from benchmarks.replay_rows import ALPHA, BATCH, BETA, CAPACITY, STEPS, errors, segments


def main() -> None:
    """Serves rounds of transitions per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=("all", "sample"), required=True)
    args = parser.parse_args()

    from rollax.batch import Fragment
    from rollax.replay.prioritized import PrioritizedReplay

    episodes = segments()
    columns = {name: np.concatenate([segment[name][:STEPS] for segment in episodes]) for name in episodes[0]}
    columns["truncateds"] = np.zeros(BATCH, np.bool_)
    ends = np.flatnonzero(columns["terminateds"])
    after = {"obs": columns["obs"][ends]}
    buffer, rng, next_errors = PrioritizedReplay(CAPACITY, alpha=ALPHA), np.random.default_rng(0), errors()
    trajectories = 0

    def add() -> None:
        nonlocal trajectories
        trajectory = trajectories + np.arange(BATCH) // STEPS
        trajectories += len(episodes)
        buffer.add(Fragment({**columns, "trajectory_id": trajectory}, ends, after))

    def work() -> int:
        if args.work == "all":
            add()
        batch = buffer.sample(BATCH, rng, beta=BETA)
        buffer.update_priorities(batch["indices"], next_errors())
        return BATCH

    while len(buffer) < CAPACITY:
        add()
    serve_rates(work, versions=versions("rollax", "numpy"))


if __name__ == "__main__":
    main()
