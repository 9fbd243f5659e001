"""Runs PPO on a cluster of three nodes of this machine, one of which is lost during the run; then IMPALA."""

import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rollax.algorithms.registry import get_trainer_class
from tests.faults.worlds import ALGORITHMS, FailsOnOrder, Orders, config_for

LONG = 150.0
"""Timeout in seconds."""


def main() -> None:
    # Each of two nodes has enough CPUs for both workers; the driver's node has none.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
        cluster.wait_for_nodes()
        with tempfile.TemporaryDirectory() as folder:
            play(cluster, nodes, Path(folder))
    finally:
        ray.shutdown()
        cluster.shutdown()


def play(cluster: Any, nodes: list[Any], folder: Path) -> None:
    """Runs both algorithms, and prints the facts that the test compares."""
    settings = {"num_cpus_per_worker": 1, "ray_address": cluster.address, "worker_start_timeout_s": LONG}
    with make("PPO", folder, **settings) as trainer:
        trainer.train()
        before = places(trainer)
        (lost,) = (node for node in nodes if node.node_id == before[0])
        cluster.remove_node(lost, allow_graceful=False)
        deadline, restarts = time.monotonic() + LONG, before.count(lost.node_id)
        health = trainer.train()["info"]["workers"]
        while health["restarts"] < restarts or health["healthy"] < 2:
            assert time.monotonic() < deadline, health
            health = trainer.train()["info"]["workers"]
        (left,) = (node.node_id for node in nodes if node is not lost)
        print("> PPO continues", places(trainer) == [left, left], len(health["last_errors"]) == restarts)
    with make("IMPALA", folder, **settings) as trainer:
        trainer.train()
        print("> IMPALA trains", places(trainer) == [left, left])


def make(algorithm: str, folder: Path, **settings: Any) -> Any:
    config = config_for(Orders(folder), **{**ALGORITHMS[algorithm], **settings})
    return get_trainer_class(algorithm)(FailsOnOrder, config)


def places(trainer: Any) -> list[str]:
    """The node of each worker."""

    def node(_: Any) -> str:
        return ray.get_runtime_context().get_node_id()

    return trainer.workers.foreach_worker(node)


if __name__ == "__main__":
    main()
