"""Training iterations of one algorithm: their duration, their rate, or the growth of memory over many of them."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.protocol import Link, serve_durations, serve_rates, versions
from benchmarks.sides.native import make_native


def main() -> None:
    """Serves rounds of the requested measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=["duration", "rate", "memory"])
    parser.add_argument("--algorithm", default="PPO")
    parser.add_argument("--env", required=True)
    parser.add_argument("--config", type=json.loads, required=True, help="the trainer's config, as JSON")
    parser.add_argument("--native-envs", type=int, default=0, help="this many copies in one native vector env")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=300)
    args = parser.parse_args()

    from rollax.algorithms.registry import get_trainer_class

    env = (lambda _context: make_native(args.env, args.native_envs)) if args.native_envs else args.env
    trainer = get_trainer_class(args.algorithm)(env=env, config=args.config | {"seed": 0})
    workers = args.config.get("num_workers", 0)
    installed = versions("rollax", *(["ray"] if workers else []), "jax", "flax", "gymnasium", "ale-py", "numpy")
    if args.measure == "duration":
        serve_durations(trainer.train, warm_up=args.warm_up, versions=installed)
    elif args.measure == "rate":
        lead_in = trainer.train if workers else None
        serve_rates(lambda: trainer.train()["timesteps_this_iter"], lead_in=lead_in, versions=installed)
    else:
        _serve_memory(trainer.train, args.warm_up, args.iterations, installed)
    trainer.stop()


def _serve_memory(train: Callable[[], Any], warm_up: int, iterations: int, installed: dict[str, str]) -> None:
    """Reports the growth of resident memory in percent, between the maxima of ten iterations at start and end."""
    link, process = Link(), psutil.Process()

    def largest_of_ten() -> int:
        largest = 0
        for _ in range(10):
            train()
            largest = max(largest, process.memory_info().rss)
        return largest

    for _ in range(warm_up):
        train()
    before = largest_of_ten()
    link.send(event="ready", facts={"versions": installed, "megabytes_before": round(before / 2**20, 1)})
    for _ in link.rounds():
        for _ in range(iterations - 10):
            train()
        link.send(event="round", value=100 * (largest_of_ten() / before - 1))


if __name__ == "__main__":
    main()
