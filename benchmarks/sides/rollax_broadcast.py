"""Broadcast of a 10 MB model to several workers: seconds until all have replied, or the number of stored objects."""

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.protocol import Link, serve_durations, versions

_WIDTH = 1120  # an actor and a critic of 2 x 1120 units: 2.5 million numbers


class CountedWeights(dict[str, Any]):
    """Weights that count how often they are serialized: once per stored object."""

    stored = 0

    def __reduce__(self) -> tuple[Any, ...]:
        CountedWeights.stored += 1
        return dict, (dict(self),)


def main() -> None:
    """Serves rounds of the requested measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=["duration", "puts"])
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--one-by-one", action="store_true", help="the weights as an argument of each worker's call")
    args = parser.parse_args()

    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig
    from rollax.rollout.messages import Update
    from rollax.rollout.worker_set import WorkerSet

    config = PPOConfig(
        env="CartPole-v1",
        num_workers=args.num_workers,
        num_cpus_per_worker=0,
        rollout_fragment_length=1,
        model=ModelConfig(fcnet_hiddens=(_WIDTH, _WIDTH)),
        ray_address="local",
        seed=0,
    )
    workers = WorkerSet(config, PPO)
    remote, version = workers.remote, 0

    def hand_out() -> None:
        nonlocal version
        version += 1
        update = Update(version, 0, CountedWeights(workers.local.get_weights()), workers.local.get_filters())
        if args.one_by_one:
            remote.call_all("sample_fragment", update)
            return
        remote.publish(update)
        for index in remote.indices:
            remote.request(index, "sample_fragment")
        while remote.requests_in_flight:
            remote.collect()

    numbers = sum(part.size for weights in workers.local.get_weights().values() for part in weights.values())
    facts = {"megabytes": round(numbers * 4 / 1e6, 1), "versions": versions("rollax", "ray", "jax", "flax", "numpy")}
    if args.measure == "duration":
        serve_durations(hand_out, warm_up=3, **facts)
    else:
        _serve_puts(hand_out, facts)
    workers.stop()


def _serve_puts(hand_out: Callable[[], None], facts: dict[str, Any]) -> None:
    """Reports how many objects with the weights one broadcast creates."""
    link = Link()
    hand_out()
    link.send(event="ready", facts=facts)
    for _ in link.rounds():
        CountedWeights.stored = 0
        hand_out()
        link.send(event="round", value=CountedWeights.stored)


if __name__ == "__main__":
    main()
