"""The config fields of workers: where they sample, with which resources, and how failures are handled."""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from rollax.config.field_group import FieldGroup

_RESTARTS = ("max_num_worker_restarts", "num_consecutive_worker_failures_tolerance", "delay_between_worker_restarts_s")


class WorkerFields(FieldGroup):
    """Processes that sample: their number, their resources, and how failures are handled.

    With `num_workers=0` the fields of workers are accepted without effect, so that this key alone moves a run into one
    process. They still apply to workers that evaluate, and `ray_address` to remote sub-environments.
    """

    requires = {_RESTARTS: {"recreate_failed_workers": True}}
    places = {
        "num_envs_per_worker": ("evaluation",),
        (
            *("num_workers", "num_cpus_per_worker", "num_gpus_per_worker", "custom_resources_per_worker"),
            *("num_cpus_for_driver", "num_gpus", "ray_address", "recreate_failed_workers", "ignore_worker_failures"),
            *(*_RESTARTS, "sample_timeout_s", "worker_start_timeout_s"),
        ): (),
    }

    num_workers: int = Field(
        default=0,
        ge=0,
        le=2**15 - 1,
        description="number of processes that sample, as Ray actors; 0: the trainer's process samples, without Ray",
    )
    num_envs_per_worker: int = Field(default=1, ge=1, le=2**20, description="number of sub-environments in each worker")
    num_cpus_per_worker: float = Field(default=1.0, ge=0, description="CPUs that each worker reserves")
    num_gpus_per_worker: float = Field(
        default=0.0, ge=0, description="GPUs that each worker reserves; 0: it acts on the CPU"
    )
    custom_resources_per_worker: dict[str, PositiveFloat] = Field(
        default={}, description="further Ray resources that each worker reserves, by name"
    )
    num_cpus_for_driver: float = Field(
        default=1.0, ge=0, description="CPUs that Ray Tune reserves for the process that learns"
    )
    num_gpus: float = Field(
        default=0.0,
        ge=0,
        description="GPUs that Ray Tune reserves for the process that learns; an error if that process finds fewer",
    )
    ray_address: str | None = Field(
        default=None,
        description="address of a running Ray cluster; None: the environment variable RAY_ADDRESS, else a cluster on "
        "this machine, else a new one for this run",
    )
    recreate_failed_workers: bool = Field(
        default=True,
        description="whether a worker that dies, hangs or raises is recreated, with its index and the current weights",
    )
    ignore_worker_failures: bool = Field(
        default=False,
        description="whether a run begins without a worker whose process dies at the start, even after restarts, and, "
        "if recreate_failed_workers is false, goes on without a worker that fails later; false: the error is raised. "
        "If recreate_failed_workers is true, a run that has begun goes on without a worker that has no restart left",
    )
    max_num_worker_restarts: int = Field(
        default=1000, ge=0, description="largest number of restarts of all workers together, over the whole run"
    )
    num_consecutive_worker_failures_tolerance: int = Field(
        default=3,
        ge=0,
        description="tolerated number of consecutive failures of one worker, without a fragment between them",
    )
    delay_between_worker_restarts_s: float = Field(
        default=1.0,
        ge=0,
        description="seconds before the second consecutive restart of a worker; doubled for each further one, up to a "
        "minute",
    )
    sample_timeout_s: float | None = Field(
        default=600.0,
        gt=0,
        description="seconds without a fragment (with sample_async: without a step) after which a worker counts as "
        "hung and is restarted; None: no limit",
    )
    worker_start_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="largest number of seconds until a worker is placed on a node and has created its environments",
    )
