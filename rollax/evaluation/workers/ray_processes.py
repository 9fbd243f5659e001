"""Workers as Ray actors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rollax.cluster import started_here, started_ray
from rollax.errors import ConfigError, RemoteTraceback, WorkerError
from rollax.evaluation.actor_class import actor_class
from rollax.evaluation.messages import Fragment

_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class _Apart(NamedTuple):
    """The references of a call that returns rows apart from all else."""

    head: Any
    rows: Any


class RayCalls:
    """The part of `Processes` that does not depend on how workers are made."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        if not self._ray.is_initialized():  # which a call would do, with a cluster that knows of no worker
            raise WorkerError(
                "Ray was shut down under the workers.",
                where=f"{method}()",
                expected="Ray to run as long as they are used",
                fix="stop the trainer before ray.shutdown(), and make a new one after it",
            )
        reference = getattr(worker, method).remote(*arguments)
        return _Apart(*reference) if isinstance(reference, list) else reference

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        timeout = None if timeout_s == float("inf") else max(timeout_s, 0.0)
        heads = {_head(reference): reference for reference in references}
        return [heads[head] for head in self._ray.wait([*heads], num_returns=count, timeout=timeout)[0]]

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        heads = [_head(reference) for reference in references]
        try:
            outcomes = self._ray.get(heads)
        except Exception:  # of which one it is told when they are asked one by one
            outcomes = [self._outcome(head) for head in heads]
        return [_with_rows(*pair) for pair in zip(references, outcomes, strict=True)]

    def _outcome(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        gone = (errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError)
        try:
            return self._ray.get(reference)
        except gone as error:
            return WorkerError(
                "The process of a worker is gone.",
                got=str(error),
                expected="a process that goes on",
                fix="look for a crash in native code, a lack of memory, sys.exit(), or a node that was lost",
            )
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            if cause is None or isinstance(cause, errors.RayError):
                cause = _cannot_travel(error)
            cause.__cause__ = RemoteTraceback(_COLOURS.sub("", str(error)))
            return cause

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def kill(self, worker: Any) -> None:
        if self._ray.is_initialized():
            self._ray.kill(worker)


class RayHandles(RayCalls):
    """Actors that somebody else has made.

    Args:
        handles: of the actors, by index from 1.
    """

    def __init__(self, handles: Sequence[Any]) -> None:
        super().__init__(started_ray("num_workers"))
        self._handles = list(handles)

    def start(self, index: int) -> Any:
        return self._handles[index - 1]

    def kill(self, worker: Any) -> None:
        """Leaves it to whoever has made it."""


class RayProcesses(RayCalls):
    """Actors made here, from what the worker class takes.

    Args:
        worker_class: the class of the workers.
        count: how many there will be.
        arguments: what its constructor takes by name, beside `worker_index` and `restarts`.
        num_cpus, num_gpus, resources: that each reserves.
        ray_address: of a running cluster.
    Raises:
        ConfigError: the arguments cannot travel, or there are not so many CPUs, GPUs or resources.
    """

    def __init__(
        self,
        worker_class: type,
        count: int,
        arguments: Mapping[str, Any],
        *,
        num_cpus: float,
        num_gpus: float,
        resources: Mapping[str, float],
        ray_address: str | None = None,
    ) -> None:
        ray = started_ray("num_workers", ray_address)
        super().__init__(ray)
        reserved = {"CPU": num_cpus, "GPU": num_gpus, **resources}
        _refuse_too_much(ray, count, {name: amount for name, amount in reserved.items() if amount})
        self._class = actor_class(
            worker_class, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, ray_address=ray_address
        )
        # One object for all of them, now and when they are started anew.
        self._arguments = {name: _stored(ray, name, value) for name, value in arguments.items()}
        self._starts: Counter[int] = Counter()

    def start(self, index: int) -> Any:
        restarts = self._starts[index]
        self._starts[index] += 1
        return self._class.remote(**self._arguments, worker_index=index, restarts=restarts, make_now=False)


def _head(reference: Any) -> Any:
    return reference.head if isinstance(reference, _Apart) else reference


def _with_rows(reference: Any, outcome: Any) -> Any:
    """A fragment whose rows stay where they are has a reference to them in their place."""
    if isinstance(reference, _Apart) and isinstance(outcome, Fragment):
        return replace(outcome, batch=reference.rows)
    return outcome


def _stored(ray: Any, name: str, value: Any) -> Any:
    try:
        return ray.put(value)
    except Exception as error:
        why = error.__cause__ or error  # Ray wraps it in a page of advice
        raise ConfigError(
            "A config that cannot travel to another process.",
            where=f"{name}, with num_workers above 0",
            got=f"{type(why).__name__}: {why}",
            expected="an environment, policies and callbacks that cloudpickle can store",
            fix="make what they need (files, locks, simulators) inside of the env creator, not outside",
        ) from error


def _cannot_travel(error: Exception) -> WorkerError:
    *_, last = str(error).strip().splitlines() or [repr(error)]
    return WorkerError(
        "A worker raised what cannot travel to this process.",
        got=last,
        expected="an exception that pickle stores and makes again",
        fix="mend the cause shown above; an exception travels if its attributes do and str(error) is all it is made of",
    )


def _refuse_too_much(ray: Any, count: int, reserved: Mapping[str, float]) -> None:
    """Refuses what there will never be: a cluster that others have started may grow, one of this process does not."""
    if not started_here(ray):
        return
    there = ray.cluster_resources()
    lacking = {name: amount * count for name, amount in reserved.items() if amount * count > there.get(name, 0.0)}
    if lacking:
        raise ConfigError(
            "The workers need more than there is.",
            where="config keys 'num_workers', 'num_cpus_per_worker', 'num_gpus_per_worker', "
            "'custom_resources_per_worker'",
            got=", ".join(f"{name}: {amount:g}" for name, amount in lacking.items()),
            expected="at most " + ", ".join(f"{name}: {there.get(name, 0.0):g}" for name in lacking),
            fix="lower num_workers or what each reserves (num_cpus_per_worker=0 or 0.5 shares cores), or connect to a "
            "larger cluster with ray_address",
        )
