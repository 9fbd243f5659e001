"""d3rlpy: updates from a D4RL file, or reading it."""

import argparse
import sys

import d3rlpy
import h5py
import numpy as np
import torch

from benchmarks.d4rl_file import d4rl_file
from benchmarks.protocol import serve_rates, versions

BATCH = 256
UPDATES = 20
CONFIGS = {
    "BC": d3rlpy.algos.BCConfig,
    "CQL": d3rlpy.algos.CQLConfig,
    "IQL": d3rlpy.algos.IQLConfig,
    "TD3BC": d3rlpy.algos.TD3PlusBCConfig,
}


def read(path):
    """Returns the data set of a D4RL file, read as d3rlpy's own `get_d4rl` does."""
    with h5py.File(path) as file:
        columns = {name: np.asarray(file[name]) for name in file}
    return d3rlpy.dataset.MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["terminals"].astype(np.float32),
        timeouts=columns["timeouts"].astype(np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=["updates", "read"], required=True)
    parser.add_argument("--algorithm", choices=list(CONFIGS), default="BC")
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()
    sys.stdout = sys.stderr  # d3rlpy logs to standard output, which belongs to the harness
    path = d4rl_file(args.rows)
    facts = {"versions": versions("d3rlpy", "torch", "numpy", "h5py"), "threads": torch.get_num_threads()}
    if args.work == "read":
        serve_rates(lambda: read(path).transition_count, **facts)
        return
    dataset = read(path)
    algorithm = CONFIGS[args.algorithm](batch_size=BATCH).create(device="cpu:0")
    algorithm.build_with_dataset(dataset)

    def update() -> int:
        for _ in range(UPDATES):
            algorithm.update(dataset.sample_transition_batch(BATCH))
        return UPDATES

    serve_rates(update, **facts)


if __name__ == "__main__":
    main()
