"""`ActorPool`: pending calls of several actors, time limits, and restarts of failed actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rollax.core.cleanup import cleanup_on_error
from rollax.errors import WorkerError, text_of
from rollax.processes.actors import Actors, ProcessLostError
from rollax.processes.failure_rules import Failures, log

_FOREVER = float("inf")
_STOP_S = 5.0  # how long actors may take to stop before their processes are killed
_EARLY_S = 0.01  # a wait may return slightly before its timeout


@dataclass(eq=False, slots=True)
class Call:
    """A call of an actor's method, and its outcome."""

    index: int  # the index of the actor
    method: str
    arguments: tuple[Any, ...] = ()
    raises: bool = False  # an exception of the method is the outcome of the call, not a failure of the actor
    collected: bool = True  # whether `ActorPool.ready` returns the call when it is over
    over: bool = False  # the method has returned or raised, or the actor has failed
    lost: bool = False  # the actor has failed
    value: Any = None
    error: Exception | None = None
    state: Any = None  # the state of the actor to which the call was sent

    def __str__(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.arguments))})"


@dataclass(eq=False, slots=True)
class Actor:
    """An actor that has been started."""

    index: int
    handle: Any  # as `Actors.start` returned it
    state: Any  # state for the pool's owner; each restart begins with a new one
    started: bool  # whether it is made and has not failed since
    since: float  # `time.monotonic()` of its last answer, or of the first call after a pause
    calls: dict[Any, Call] = field(default_factory=dict)  # pending, by reference
    made: Any = None  # the result of its `make`


@dataclass(slots=True)
class _Restart:
    due: float
    calls: list[Call] = field(default_factory=list)  # to be sent after the restart


class ActorPool:
    """A pool of actors, numbered by index.

    An actor fails if its process ends, if it does not answer in time, or if a method raises.

    Args:
        actors: starts the actors and calls them.
        indices: the index of each actor.
        failures: decides whether a failed actor is restarted or left out, or its error is raised.
        makes: actors have a method `make`, called after each start; they count as started when it has returned.
        remakes: an actor whose method raises is made again in its process; otherwise in a new process.
        stop: name of the method that is called before a process ends; empty for none.
        state: makes the state of a starting actor, see `Actor`.
    """

    def __init__(
        self,
        actors: Actors,
        indices: Iterable[int],
        failures: Failures,
        *,
        makes: bool = False,
        remakes: bool = False,
        stop: str = "",
        state: Callable[[], Any] = lambda: None,
    ) -> None:
        self._actors, self.failures = actors, failures
        self._makes, self._remakes, self._stop, self._state = makes, remakes, stop, state
        self.make_arguments: tuple[Any, ...] = ()  # the arguments of the next calls of `make`
        self._making_all = False
        self._over: list[Call] = []  # finished calls that `ready` has not returned yet
        self._restarts: dict[int, _Restart] = {}
        self._starts = dict.fromkeys(indices, 0)
        self.count = len(self._starts)  # the number of actors at the beginning
        self._live: dict[int, Actor] = {}
        for index in self._starts:
            self._start(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count}, healthy={self.healthy})"

    def __len__(self) -> int:
        return len(self.indices)

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def indices(self) -> list[int]:
        """The indices of the actors that are running or wait for a restart."""
        return sorted({*self._live, *self._restarts})

    @property
    def healthy(self) -> int:
        """The number of actors that are made and have not failed since."""
        return sum(actor.started for actor in self._live.values())

    @property
    def references(self) -> list[Any]:
        """References to the pending calls, for a wait on several pools."""
        return [reference for actor in self._live.values() for reference in actor.calls]

    @property
    def pending(self) -> list[Call]:
        """The calls that `ready` has not returned yet."""
        in_flight = (actor.calls.values() for actor in self._live.values())
        held = (restart.calls for restart in self._restarts.values())
        return [call for calls in chain(in_flight, held, [self._over]) for call in calls if call.collected]

    @property
    def most_starts(self) -> int:
        """The largest number of starts of an actor; 0 without actors."""
        return max(self._starts.values(), default=0)

    def count_starts_from(self, starts: int) -> None:
        """Sets the number of earlier starts of each actor to at least `starts`."""
        self._starts = {index: max(own, starts) for index, own in self._starts.items()}

    def health(self) -> dict[str, Any]:
        """The numbers of healthy actors and of restarts, and the last error of each actor that has failed."""
        last = sorted(self.failures.last.items())
        errors = {str(index): f"{type(error).__name__}: {text_of(error)}" for index, error in last}
        return {"healthy": self.healthy, "restarts": self.failures.restarts, "last_errors": errors}

    def send(self, index: int, method: str, *arguments: Any, raises: bool = False, collected: bool = True) -> Call:
        """Sends a call to an actor, after its restart if one is due; calls to actors that are left out are lost."""
        call = Call(index, method, arguments, raises, collected)
        if index in self._restarts:
            self._restarts[index].calls.append(call)
        elif index in self._live:
            self._dispatch(self._live[index], call)
        else:
            call.over = call.lost = True
        return call

    def ready(self, timeout_s: float = _FOREVER, others_s: float = 0.0) -> list[Call]:
        """Returns the finished calls of `send`; if none has finished but some are pending, waits for the first.

        Args:
            timeout_s: seconds to wait for the first call.
            others_s: seconds to wait for further calls, after the first has finished.
        Raises:
            WorkerError: no actor is left.
            Exception: the error of an actor that is neither restarted nor left out.
        """
        until = time.monotonic() + timeout_s
        while self.pending:
            self._take(0.0 if self._over else until - time.monotonic(), others_s)
            if self._over or time.monotonic() >= until:
                break
        over, self._over = self._over, []
        return over

    def forget(self) -> None:
        """Drops the pending calls: `ready` does not return them, and calls that wait for a restart are not sent."""
        for call in self.pending:
            call.collected = False
        for restart in self._restarts.values():
            restart.calls = []
        self._over = []

    def call_all(self, method: str, *arguments: Any, raises: bool = False) -> dict[int, Any]:
        """Index -> result of a method of each actor; waits for all. Actors that fail or await a restart have no entry.

        With `raises`, an exception of the method is raised here; otherwise it is a failure of the actor.
        """
        return self.call_each(method, dict.fromkeys(self._live, arguments), raises=raises)

    def call_each(
        self, method: str, arguments_of: Mapping[int, tuple[Any, ...]], *, raises: bool = False
    ) -> dict[int, Any]:
        """As `call_all`, for some actors, each with its own arguments."""
        there = sorted(index for index in arguments_of if index in self._live and index not in self._restarts)
        calls = [self.send(index, method, *arguments_of[index], raises=raises, collected=False) for index in there]
        self._finish(calls)
        return {call.index: call.value for call in calls if not call.lost}

    def make_all(self) -> dict[int, Any]:
        """Waits until all actors are made; returns the results of their `make`.

        Raises:
            Exception: `make` of an actor raised, an actor did not start in time, or the process of an actor ended and
                the actor is neither restarted nor left out. All actors are then stopped.
        """
        self._making_all = True
        try:
            with cleanup_on_error(self.stop):
                while self._restarts or self.healthy < len(self._live):
                    self._take(_FOREVER)
        finally:
            self._making_all = False
        return {index: actor.made for index, actor in sorted(self._live.items())}

    def stop(self) -> None:
        live, self._live = self._live, {}
        self._restarts, self._over = {}, []
        stopping: dict[Any, int] = {}
        for index, actor in live.items():
            if self._stop and actor.started:
                with suppress(WorkerError):  # the actor can no longer be called
                    stopping[self._actors.call(actor.handle, self._stop)] = index
        if stopping:
            over = self._actors.wait(list(stopping), len(stopping), _STOP_S)
            for reference, outcome in zip(over, self._actors.outcomes(over), strict=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, ProcessLostError):
                    where = f"{self.failures.name.capitalize()} {stopping[reference]}"
                    log.warning("%s failed while it was stopped.", where, exc_info=outcome)
        for actor in live.values():
            self._actors.kill(actor.handle)

    def _arguments(self, actor: Actor, call: Call) -> tuple[Any, ...]:
        """The sent arguments of a call."""
        return call.arguments

    def _start(self, index: int) -> None:
        """Starts an actor; an actor whose process still runs is made again."""
        actor = self._live.get(index)
        if actor is None:
            handle = self._actors.start(index, self._starts[index])
            self._starts[index] += 1
            actor = Actor(index, handle, self._state(), not self._makes, time.monotonic())
            self._live[index] = actor
        if self._makes:
            self._dispatch(actor, Call(index, "make", self.make_arguments, collected=False))

    def _dispatch(self, actor: Actor, call: Call) -> None:
        if not actor.calls:
            actor.since = time.monotonic()
        reference = self._actors.call(actor.handle, call.method, *self._arguments(actor, call))
        actor.calls[reference], call.state = call, actor.state

    def _restart_those_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, restart in self._restarts.items() if restart.due <= now]:
            self._start(index)
            for call in self._restarts.pop(index).calls:
                self._dispatch(self._live[index], call)

    def _finish(self, calls: list[Call]) -> None:
        """Waits for these calls; raises the error of the first call that raised."""
        while not all(call.over for call in calls):
            self._take(_FOREVER)
        for call in calls:
            if call.error is not None:
                raise call.error

    def _take(self, timeout_s: float, others_s: float = 0.0) -> None:
        """Waits for calls, records their outcomes, and handles failures and restarts."""
        self._restart_those_due()
        due = [restart.due for restart in self._restarts.values()]
        wake_up = min([_FOREVER, *map(self._deadline, self._live.values()), *due])
        actor_of = {reference: actor for actor in self._live.values() for reference in actor.calls}
        over = self._wait(list(actor_of), 1, min(timeout_s, wake_up - time.monotonic()))
        if over and len(actor_of) > 1:
            over = self._wait(list(actor_of), len(actor_of), min(others_s, wake_up - time.monotonic()))
        for reference, outcome in zip(over, self._actors.outcomes(over), strict=True):
            actor = actor_of[reference]
            if self._live.get(actor.index) is actor and reference in actor.calls:  # otherwise another call failed
                self._record(actor, reference, outcome)
        # Tested after the answers are recorded, because an actor whose answer has arrived has not hung.
        now = time.monotonic()
        for actor in list(self._live.values()) if now + _EARLY_S >= wake_up else ():
            if now + _EARLY_S >= self._deadline(actor):
                call, waited_s = str(next(iter(actor.calls.values()))), now - actor.since
                error = self.failures.hung(
                    actor.index, call, waited_s, starting=not actor.started, stack=self._actors.stack_of(actor.index)
                )
                if self._making_all:
                    raise error
                self._failed(actor, error, process_lost=True)

    def _wait(self, references: list[Any], count: int, timeout_s: float) -> list[Any]:
        timeout_s = max(timeout_s, 0.0)
        if references:
            return self._actors.wait(references, count, timeout_s)
        time.sleep(timeout_s)  # all actors wait for their restart
        return []

    def _deadline(self, actor: Actor) -> float:
        """The time at which the actor counts as hung."""
        rules = self.failures.rules
        limit_s = rules.timeout_s if actor.started else rules.start_timeout_s
        return actor.since + limit_s if actor.calls else _FOREVER

    def _record(self, actor: Actor, reference: Any, outcome: Any) -> None:
        call = actor.calls[reference]
        if call.over:  # after an interrupt during the recording
            del actor.calls[reference]
            return
        if isinstance(outcome, ProcessLostError):
            error = self.failures.lost(actor.index, str(call), outcome, self._actors.stack_of(actor.index))
            self._failed(actor, error, process_lost=True)
            return
        if isinstance(outcome, Exception):
            if not (call.raises or self._making_all):
                self._failed(actor, outcome, process_lost=False)
                return
            outcome.add_note(self._note(actor))
            if self._making_all:
                raise outcome
            call.error = outcome
        else:
            call.value = outcome
            if call.method == "make":
                actor.made = outcome
        actor.started, actor.since = True, time.monotonic()
        self._end(call)
        del actor.calls[reference]  # last, so that an interrupt leaves each call either pending or finished

    def _end(self, call: Call, *, lost: bool = False) -> None:
        call.over, call.lost = True, lost
        if call.collected:
            self._over.append(call)

    def _failed(self, actor: Actor, error: Exception, *, process_lost: bool) -> None:
        """Handles a failure; all calls of the actor are lost."""
        error.add_note(self._note(actor))
        index = actor.index
        # Set first, and removed after the restart, so that an interrupt does not leave the actor out.
        restart = self._restarts[index] = _Restart(time.monotonic())
        calls, actor.calls = actor.calls, {}
        for call in calls.values():
            self._end(call, lost=True)
        if process_lost or not self._remakes:
            del self._live[index]
            self._actors.kill(actor.handle)
        try:
            delay = self.failures.failed(index, error)
        except Exception:
            del self._restarts[index]
            raise
        if delay is not None:
            actor.started = False
            restart.due += delay
            self._restart_those_due()
            return
        del self._restarts[index]
        if self._making_all and not self.failures.rules.ignore:
            raise error
        if not len(self):
            raise self.failures.unavailable()

    def _note(self, actor: Actor) -> str:
        return f"(in {self.failures.name} {actor.index})"
