"""From a worker class to the Ray actor class of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rollax.cluster import started_ray
from rollax.env.registry import register_all, registrations

_GPU_SHARE = 0.9  # of the part of a GPU's memory that a worker reserves; the rest is for what JAX does not count


def actor_class(
    worker_class: type,
    *,
    num_cpus: float,
    num_gpus: float,
    resources: Mapping[str, float],
    ray_address: str | None = None,
) -> Any:
    """The Ray actor class of a worker class; see `RolloutWorker.as_remote`.

    Its constructor also takes `make_now=False`, which leaves the making to a call of `make()`: what that raises arrives
    as it is, where Ray only tells the text of what a constructor raises.
    """
    ray = started_ray("num_workers", ray_address)
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
            """A fragment without its rows, and the rows: what is meant for another process need not pass this one."""
            fragment = self.sample_fragment(update)
            return replace(fragment, batch=None), fragment.batch

        @property
        def sends_filters(self) -> bool:
            return True

    RemoteWorker.__name__ = RemoteWorker.__qualname__ = worker_class.__name__
    options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources)}
    return ray.remote(**options, runtime_env={"env_vars": process_settings(num_gpus)})(RemoteWorker)


def process_settings(num_gpus: float) -> dict[str, str]:
    """The environment variables of a process that samples: one thread, and no accelerator unless it reserves one."""
    settings = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if num_gpus == 0:
        return {**settings, "JAX_PLATFORMS": "cpu"}
    return {**settings, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{min(num_gpus, 1.0) * _GPU_SHARE:.3f}"}
