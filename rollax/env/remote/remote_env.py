"""Ray actors that each hold one sub-environment. The only place below evaluation that uses Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rollax.cluster import started_ray
from rollax.env import checks
from rollax.env.copies import NO_SPACES, Spaces, check_spaces
from rollax.env.registry import registrations
from rollax.env.remote.env_host import EnvFacts, EnvHost, Failure
from rollax.errors import ConfigError, EnvError, RemoteTraceback

_CLOSE_S = 5.0  # how long environments may take to close before their processes end
_EARLY_S = 0.01  # Ray counts whole milliseconds, and may be back a little before its time
_START_S = 60.0  # beyond the time limit, for a new process and the environment in it


class Call(NamedTuple):
    """One call of an actor whose outcome has not been collected."""

    reference: Any
    method: str
    argument: Any = None
    due: float = float("inf")  # time.monotonic() from which on the environment counts as hung


class EnvActors:
    """One actor for each sub-environment, with at most one call under way in each.

    Args:
        make_env: makes the sub-environment of a number.
        num_envs: how many.
        existing: stands for the first one.
        declared: the spaces of the config.
        timeout_s: a call that takes longer has hung; None for no limit.
    Raises:
        EnvError, SpaceError: a sub-environment that cannot be made, or whose spaces are not those of the others.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        *,
        existing: Any = None,
        declared: Spaces = NO_SPACES,
        timeout_s: float | None = None,
    ) -> None:
        self._ray = started_ray("remote_worker_envs")
        self._timeout_s = float("inf") if timeout_s is None else timeout_s
        # The processes are small and mostly wait: Ray is to start them all, however few cores there are.
        self._host = self._ray.remote(num_cpus=0)(EnvHost)
        self._arguments = self._travelling(make_env, existing, declared)
        self._calls: dict[int, Call] = {}
        self._late_s: dict[int, float] = {}  # by how much the next call may be late, as it waits for a new environment
        self._actors = [self._start(index, first=index == 0) for index in range(num_envs)]
        try:
            self.facts = self._made_alike()
        except BaseException:
            self.stop()
            raise

    def _travelling(self, make_env: Callable[[int], Any], existing: Any, declared: Spaces) -> tuple[Any, ...]:
        try:
            return tuple(map(self._ray.put, (make_env, existing, declared, registrations(self._ray.cloudpickle.dumps))))
        except Exception as error:
            raise ConfigError(
                "An environment, or its creator, that cannot travel to another process.",
                where="remote_envs",
                got=f"{type(error).__name__}: {error}",
                expected="a function or class that cloudpickle can store",
                fix="make what it needs (files, locks, simulators) inside of the creator, not outside",
            ) from error

    def _start(self, index: int, *, first: bool = False) -> Any:
        make_env, existing, declared, registered = self._arguments
        return self._host.remote(index, make_env, existing if first else None, declared, registered)

    def _made_alike(self) -> EnvFacts:
        outcomes = self._get({i: Call(actor.make.remote(), "make") for i, actor in enumerate(self._actors)})
        for index, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                raise error_of(outcome)
            where = f"{outcome.name}, sub-environment {index}"
            check_spaces(outcome, outcomes[0], where, may_lack_spaces=outcome.several_agents)
        return outcomes[0]

    def is_busy(self, index: int) -> bool:
        """Whether a call is under way."""
        return index in self._calls

    def send(self, index: int, method: str, argument: Any) -> None:
        """Calls `reset` or `step`; what a call under way returns is of no interest any more."""
        reference, limit_s = getattr(self._actors[index], method).remote(argument), self._timeout_s
        due = time.monotonic() + limit_s + self._late_s.pop(index, 0.0)
        self._calls[index] = Call(reference, method, argument, due)

    def collect(
        self, indices: Iterable[int] | None = None, *, first_s: float = float("inf"), others_s: float = 0.0
    ) -> dict[int, tuple[Call, Any]]:
        """The calls that are over, with what they returned or a `Failure`, by sub-environment in their order.

        Args:
            indices: of interest are the calls of these sub-environments; None: all calls.
            first_s: seconds to wait for the first.
            others_s: seconds to wait, from then on, for the others.
        """
        calls = self._calls if indices is None else {index: self._calls[index] for index in indices}
        index_of = {call.reference: index for index, call in calls.items()}
        references, due = list(index_of), min(call.due for call in calls.values())
        ready = self._wait(references, 1, min(first_s, due - time.monotonic()))
        if len(references) > 1:
            # Also with no time to wait: many may be ready.
            ready = self._wait(references, len(references), min(others_s, due - time.monotonic()) if ready else 0.0)
        news = self._get({index_of[reference]: calls[index_of[reference]] for reference in ready})
        now, limit = time.monotonic(), f"no answer within {self._timeout_s:g} s"
        hung = {index: call for index, call in calls.items() if index not in news and call.due < now + _EARLY_S}
        news |= {index: _lost(index, call, "An environment has hung.", limit) for index, call in hung.items()}
        return {index: (self._calls.pop(index), news[index]) for index in sorted(news)}

    def _wait(self, references: list[Any], count: int, timeout_s: float) -> list[Any]:
        timeout = None if timeout_s == float("inf") else max(timeout_s, 0.0)
        return self._ray.wait(references, num_returns=count, timeout=timeout)[0]

    def _get(self, calls: dict[int, Call]) -> dict[int, Any]:
        """What these calls returned, or a `Failure`; waits for all of them."""
        try:
            values = self._ray.get([call.reference for call in calls.values()])
        except Exception:
            return {index: self._get_one(index, call) for index, call in calls.items()}
        return dict(zip(calls, values, strict=True))

    def _get_one(self, index: int, call: Call) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call.reference)
        except errors.RayTaskError as error:  # what it returned cannot travel
            return Failure(checks.failed(error.cause, call.method, f"sub-environment {index}"), str(error))
        except errors.RayError as error:
            return _lost(index, call, "The process of an environment is gone.", str(error))

    def restart(self, index: int, *, pause_s: float, new_process: bool) -> None:
        """Makes a sub-environment anew, and in a new process if the old one is lost."""
        if new_process:
            self._ray.kill(self._actors[index])
            self._actors[index] = self._start(index)
        self._actors[index].make.remote(pause_s, self.facts)
        self._late_s[index] = pause_s + _START_S

    def ask(self, index: int, method: str, *arguments: Any) -> Any:
        """The result of another method of an `EnvHost`, waited for.

        Raises:
            EnvError: it failed.
        """
        call = Call(getattr(self._actors[index], method).remote(*arguments), method)
        outcome = self._get({index: call})[index]
        if isinstance(outcome, Failure):
            raise error_of(outcome)
        return outcome

    def stop(self) -> None:
        """Closes the environments and ends their processes. Ray itself goes on until this process ends."""
        actors, self._actors = self._actors, []
        if not actors or not self._ray.is_initialized():
            return
        calls = {index: Call(actor.close.remote(), "close") for index, actor in enumerate(actors)}
        closed = self._wait([call.reference for call in calls.values()], len(calls), _CLOSE_S)
        outcomes = self._get({index: call for index, call in calls.items() if call.reference in closed})
        for outcome in outcomes.values():
            if isinstance(outcome, Failure) and not outcome.process_lost:
                checks.log.warning("%s", outcome.error, exc_info=error_of(outcome))
        for actor in actors:
            self._ray.kill(actor)


class RemoteSubEnvironment:
    """Stands for an environment in another process: its attributes are read, and its methods called, over there."""

    def __init__(self, actors: EnvActors, index: int) -> None:
        self._actors = actors
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        is_method, value = self._actors.ask(self._index, "look_up", name)
        if not is_method:
            return value
        return lambda *arguments, **keywords: self._actors.ask(self._index, "call", name, arguments, keywords)


def error_of(failure: Failure) -> Exception:
    """The error to raise, which shows the traceback of the environment's process above it."""
    error = failure.error
    error.__cause__ = RemoteTraceback(failure.traceback) if failure.traceback else None
    return error


def _lost(index: int, call: Call, what: str, details: str) -> Failure:
    """What is told of a sub-environment whose process is of no use any more."""
    error = EnvError(
        what,
        where=f"sub-environment {index}, {call.method}()",
        got=f"action {call.argument!r}; {details}" if call.method == "step" else details,
        expected="a process that goes on, and answers in time",
        fix="look for a crash in native code, a lack of memory, sys.exit(), or an endless loop",
    )
    return Failure(error, process_lost=True)
