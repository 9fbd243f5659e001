"""rollax: updates from a D4RL file, or reading it."""

import argparse
import json

from benchmarks.d4rl_file import d4rl_file
from benchmarks.protocol import serve_rates, versions

BATCH = 256
UPDATES = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=["updates", "read"], required=True)
    parser.add_argument("--algorithm", default="BC")
    parser.add_argument("--config", type=json.loads, default={}, help="keys of the trainer's config, as JSON")
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()
    path = d4rl_file(args.rows)
    if args.work == "read":
        from rollax import open_dataset

        def read() -> int:
            return sum(map(len, open_dataset(path).trajectories()))

        serve_rates(read, versions=versions("rollax", "numpy", "h5py"))
        return
    from rollax.algorithms.registry import get_trainer_class

    config = {"input": str(path), "updates_per_step": UPDATES, "train_batch_size": BATCH, "seed": 0, **args.config}
    with get_trainer_class(args.algorithm)(env="Pendulum-v1", config=config) as trainer:

        def update() -> float:
            return trainer.train()["timesteps_this_iter"] / BATCH

        serve_rates(update, versions=versions("rollax", "jax", "flax", "numpy", "h5py"))


if __name__ == "__main__":
    main()
