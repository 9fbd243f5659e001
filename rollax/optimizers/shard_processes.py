"""What runs the shards of a replay memory: this process, or Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from rollax.evaluation.actor_class import process_settings
from rollax.evaluation.workers.ray_processes import RayCalls
from rollax.replay.shard import ReplayShard, ShardSettings


class ShardsHere:
    """`Processes` in this one: every call is over at once.

    Args:
        settings: of the shards.
    """

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self._starts: Counter[int] = Counter()
        self._numbers = count()
        self._outcomes: dict[int, Any] = {}

    def start(self, index: int) -> ReplayShard:
        self._starts[index] += 1
        return ReplayShard(self._settings, index, self._starts[index] - 1)

    def call(self, worker: ReplayShard, method: str, *arguments: Any) -> int:
        try:
            outcome = getattr(worker, method)(*arguments)
        except Exception as error:
            outcome = error
        reference = next(self._numbers)
        self._outcomes[reference] = outcome
        return reference

    def wait(self, references: Sequence[int], count: int, timeout_s: float) -> list[int]:
        return list(references)

    def outcomes(self, references: Sequence[int]) -> list[Any]:
        return [self._outcomes.pop(reference) for reference in references]

    def put(self, value: Any) -> Any:
        return value

    def kill(self, worker: ReplayShard) -> None:
        """There is nothing to end."""


class RayShards(RayCalls):
    """Ray actors beside this process: on its node, where there is room, for it reads most of what they hold.

    They reserve no CPU: what they do for the learner is done while it waits for them, or learns.

    Args:
        ray: the module, connected.
        settings: of the shards.
    """

    def __init__(self, ray: Any, settings: ShardSettings) -> None:
        super().__init__(ray)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor = ray.remote(num_cpus=0, scheduling_strategy=here, runtime_env={"env_vars": process_settings(0)})
        self._class = actor(ReplayShard)
        self._settings = ray.put(settings)
        self._starts: Counter[int] = Counter()

    def start(self, index: int) -> Any:
        self._starts[index] += 1
        return self._class.remote(self._settings, index, self._starts[index] - 1)
