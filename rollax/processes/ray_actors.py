"""`RayActors`: actors in other processes, by Ray."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollax.errors import RemoteTraceback, WorkerError
from rollax.processes.actors import ProcessLostError, unsendable
from rollax.processes.settings import process_settings
from rollax.processes.stacks import Stack, StackFolder

_COLOURS = re.compile("\x1b\\[[0-9;]*m")


class RayActors:
    """`Actors` in Ray.

    A method with several returns (`ray.method(num_returns=...)`) returns the first value and references to the others,
    which are not fetched. `kill` ends only actors that are `owned`. `stacks` holds the stacks that the actors write.
    """

    def __init__(
        self, ray: Any, start: Callable[[int, int], Any], *, owned: bool = True, stacks: StackFolder | None = None
    ) -> None:
        self._ray, self._start, self._owned, self._stacks = ray, start, owned, stacks

    def start(self, index: int, restarts: int) -> Any:
        return self._start(index, restarts)

    def call(self, handle: Any, method: str, *arguments: Any) -> Any:
        if not self._ray.is_initialized():  # the call would start another cluster, without the actors
            raise WorkerError("Ray was shut down while its actors were in use.", f"{method}()").expected(
                "Ray to run as long as the trainer is used",
                "stop the trainer before ray.shutdown(), and make a new one after it",
            )
        reference = getattr(handle, method).remote(*arguments)
        return tuple(reference) if isinstance(reference, list) else reference

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        timeout = None if timeout_s == float("inf") else max(timeout_s, 0.0)
        by_first = {_first(reference): reference for reference in references}
        return [by_first[first] for first in self._ray.wait([*by_first], num_returns=count, timeout=timeout)[0]]

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        firsts = [_first(reference) for reference in references]
        try:
            outcomes = self._ray.get(firsts)
        except Exception:  # get them one by one to find the call that raised
            outcomes = [self._outcome(first) for first in firsts]
        return [
            (outcome, *reference[1:])
            if isinstance(reference, tuple) and not isinstance(outcome, Exception)
            else outcome
            for reference, outcome in zip(references, outcomes, strict=True)
        ]

    def _outcome(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
            errors.ObjectLostError,
        ) as error:
            details = _COLOURS.sub("", str(error))
            if getattr(error, "actor_init_failed", False):
                return ProcessLostError(_last_error(details), details, unmade=True)
            return ProcessLostError(_reason(details), details)
        except errors.RayError as error:
            cause = getattr(error, "cause", None)
            # Callers treat outcomes that are an Exception as errors, so any other BaseException is replaced.
            if not isinstance(cause, Exception) or isinstance(cause, errors.RayError):
                cause = _unpicklable(error)
            cause.__cause__ = RemoteTraceback(_COLOURS.sub("", str(error)))
            return cause

    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    def kill(self, handle: Any) -> None:
        if self._owned and self._ray.is_initialized():
            self._ray.kill(handle)

    def stack_of(self, index: int) -> Stack | None:
        return None if self._stacks is None else self._stacks.stack_of(index)


def actor_class(
    ray: Any,
    cls: type,
    *,
    num_cpus: float,
    num_gpus: float = 0.0,
    resources: Mapping[str, float] | None = None,
    near: bool = False,
) -> Any:
    """The Ray actor class of `cls`, whose processes have one computing thread, and a GPU only if they reserve one.

    With `near`, actors start on the node of this process, if there is room.
    """
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": dict(resources or {})}
    if near:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = ray.get_runtime_context().get_node_id()
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    return ray.remote(**options, runtime_env={"env_vars": process_settings(num_gpus)})(cls)


def stored(ray: Any, arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
    """References to an actor's arguments in Ray's object store; raises ConfigError if one cannot be pickled."""
    references = {}
    for name, value in arguments.items():
        try:
            references[name] = ray.put(value)
        except Exception as error:
            raise unsendable(
                error,
                f"{name}, with {where}",
                expected="an environment, policies and callbacks that cloudpickle can store",
                fix="create files, locks and simulators inside the env creator, not outside it",
            ) from error
    return references


def _reason(details: str) -> str:
    """Ray's text in one line, without the ids of the actor and the list of causes that it gives for any crash."""
    lines = [line.strip() for line in details.splitlines() if not line.startswith("\t")]
    return " ".join(lines).partition(" Some common causes include:")[0]


def _last_error(details: str) -> str:
    """The first line of the last error in a text with tracebacks: the last line that is not indented."""
    lines = [line for line in details.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return lines[-1] if lines else details


def _first(reference: Any) -> Any:
    return reference[0] if isinstance(reference, tuple) else reference


def _unpicklable(error: Exception) -> WorkerError:
    *_, last = str(error).strip().splitlines() or [repr(error)]
    return WorkerError("An actor raised an exception that cannot be sent to this process.", None, last).expected(
        "an exception that derives from Exception and can be pickled and unpickled",
        "fix the cause shown above; an exception can be sent if str(error) is the only argument of its constructor",
    )
