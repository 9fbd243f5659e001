"""Runs PPO on a cluster of three nodes of this machine, loses one of them meanwhile, and goes on; then IMPALA."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rollax.algorithms.registry import get_trainer_class
from tests.faults.worlds import ALGORITHMS, Obedient, Orders, config_for


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=cpus) for cpus in (2, 2)]
    cluster.wait_for_nodes()
    with tempfile.TemporaryDirectory() as folder:
        # Each of the two nodes has room for both workers; the driver's has none.
        settings = {"num_cpus_per_worker": 1, "ray_address": cluster.address}
        trainer = make("PPO", Path(folder), **settings)
        trainer.train()
        before = places(trainer)
        (lost,) = (node for node in nodes if node.node_id == before[0])
        cluster.remove_node(lost, allow_graceful=False)
        while True:
            health = trainer.train()["info"]["workers"]
            if health["restarts"] == before.count(lost.node_id) == len(health["last_errors"]) and health["healthy"] == 2:
                break
        (left,) = (node.node_id for node in nodes if node is not lost)
        print("> PPO goes on", places(trainer) == [left, left])
        trainer.stop()
        trainer = make("IMPALA", Path(folder), **settings)
        trainer.train()
        print("> IMPALA begins", places(trainer) == [left, left])
        trainer.stop()
    ray.shutdown()
    cluster.shutdown()


def make(algorithm: str, folder: Path, **settings: Any) -> Any:
    config = config_for(Orders(folder), **{**ALGORITHMS[algorithm], **settings})
    return get_trainer_class(algorithm)(Obedient, config)


def places(trainer: Any) -> list[str]:
    """The node of each worker."""

    def node(_: Any) -> str:
        return ray.get_runtime_context().get_node_id()

    return trainer.workers.foreach_worker(node)


if __name__ == "__main__":
    main()
