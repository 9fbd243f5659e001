"""Rollout workers as Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rollax.config import TrainerConfig
from rollax.env.registry import register_all, registrations
from rollax.errors import ConfigError
from rollax.processes.cluster import started_here, started_ray
from rollax.processes.ray_actors import RayActors, actor_class, stored


def ray_worker_class(ray: Any, worker_class: type, **reserved: Any) -> Any:
    """The Ray actor class of a worker class; see `RolloutWorker.as_remote`.

    Its constructor also takes `make_now=False`, which leaves the making to a call of `make()`: an exception of `make()`
    arrives as it is, while Ray reports only the text of a constructor's.

    Args:
        ray: the module, connected to a cluster.
        worker_class: `RolloutWorker` or a subclass.
        reserved: num_cpus, num_gpus and resources of each actor.
    """
    registered = registrations(ray.cloudpickle.dumps)

    class RemoteWorker(worker_class):
        def __init__(self, *args: Any, make_now: bool = True, **kwargs: Any) -> None:
            register_all(registered)
            self.worker_index = kwargs.get("worker_index", 0)
            self._make: Callable[[], None] = partial(super().__init__, *args, **kwargs)
            if make_now:
                self._make()

        def make(self) -> None:
            self._make()

        @ray.method(num_returns=2)
        def sample_apart(self, update: Any = None) -> tuple[Any, Any]:
            """A fragment without its rows, and the rows: the driver passes on a reference to them, and no copy."""
            fragment = self.sample_fragment(update)
            return replace(fragment, batch=None), fragment.batch

        @property
        def sends_filters(self) -> bool:
            return True

    RemoteWorker.__name__ = RemoteWorker.__qualname__ = worker_class.__name__
    return actor_class(ray, RemoteWorker, **reserved)


def ray_workers(config: TrainerConfig, worker_class: type, arguments: Mapping[str, Any]) -> RayActors:
    """The actors of a config; each is made by a call of `make`.

    Args:
        config: of the trainer.
        worker_class: the class of the workers.
        arguments: of its constructor by name, beside `worker_index` and `restarts`.
    Raises:
        ConfigError: the arguments cannot be pickled, or there are fewer CPUs, GPUs or resources.
    """
    ray = started_ray("num_workers", config.ray_address)
    resources = dict(config.custom_resources_per_worker)
    num_cpus, num_gpus = config.num_cpus_per_worker, config.num_gpus_per_worker
    _check_resources(ray, config.num_workers, {"CPU": num_cpus, "GPU": num_gpus, **resources})
    made = ray_worker_class(ray, worker_class, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)
    references = stored(ray, arguments, "num_workers above 0")

    def start(index: int, restarts: int) -> Any:
        return made.remote(**references, worker_index=index, restarts=restarts, make_now=False)

    return RayActors(ray, start)


def _check_resources(ray: Any, count: int, reserved: Mapping[str, float]) -> None:
    """Refuses more than a cluster of this process has; one that was started elsewhere may grow."""
    if not started_here(ray):
        return
    there = ray.cluster_resources()
    lacking = {name: amount * count for name, amount in reserved.items() if amount * count > there.get(name, 0.0)}
    if lacking:
        raise ConfigError(
            "The workers need more resources than there are.",
            where="config keys 'num_workers', 'num_cpus_per_worker', 'num_gpus_per_worker', "
            "'custom_resources_per_worker'",
            got=", ".join(f"{name}: {amount:g}" for name, amount in lacking.items()),
            expected="at most " + ", ".join(f"{name}: {there.get(name, 0.0):g}" for name in lacking),
            fix="lower num_workers or what each reserves (num_cpus_per_worker=0 or 0.5 shares cores), or connect to a "
            "larger cluster with ray_address",
        )
