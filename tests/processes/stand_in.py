"""Scripted workers in the test's own process, with a simulated clock."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollax.processes.actors import ProcessLostError
from rollax.processes.stacks import Stack
from rollax.rollout.messages import Update
from rollax.rollout.remote_workers import RemoteWorkers, Reply

NEVER = float("inf")


SAMPLE = "sample_fragment"


class BrokenError(Exception):
    """An error that a worker raises."""


class Clock:
    """Replaces the module `time`; time passes only during waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        assert 0 <= seconds < NEVER
        self.slept += 1
        assert self.slept < 1000, "it sleeps instead of working"
        self.now += seconds


class Does(NamedTuple):
    """The duration and outcome of one call of a worker.

    Args:
        after_s: its duration; NEVER for a call that hangs.
        outcome: an error that it raises, or None for the usual value.
    """

    after_s: float = 1.0
    outcome: Exception | None = None


class Called(NamedTuple):
    """A recorded call; a worker is its index and its generation, the number of earlier workers of that index."""

    index: int
    generation: int
    method: str
    arguments: tuple[Any, ...]


class StandIn:
    """Implements `Actors`. Values are `(method, index, generation, number of such calls before)`.

    Args:
        clock: the simulated clock.
        script: `(index, generation, method)` -> consecutive calls that differ from `Does()`.
    """

    def __init__(self, clock: Clock, script: dict[tuple[int, int, str], Sequence[Does]] | None = None) -> None:
        self.clock = clock
        self.script = {key: list(does) for key, does in (script or {}).items()}
        self.generations: dict[int, int] = {}
        self.started: list[tuple[int, float]] = []  # index and time
        self.calls: list[Called] = []
        self.puts: list[Any] = []
        self.killed: list[tuple[int, int]] = []
        self.stacks: dict[int, Stack] = {}
        self.waits = 0
        self._free: dict[tuple[int, int], float] = {}  # the time when all requests are done
        self._done: list[tuple[float, Any]] = []  # by reference
        self._of: list[tuple[int, int]] = []

    def start(self, index: int, restarts: int) -> Any:
        assert restarts == self.generations.get(index, -1) + 1
        worker = index, restarts
        self.generations[index] = restarts
        self.started.append((index, self.clock.now))
        self._free[worker] = self.clock.now
        return worker

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        index, generation = worker
        before = sum(call[:3] == (index, generation, method) for call in self.calls)
        self.calls.append(Called(index, generation, method, arguments))
        steps = self.script.get((index, generation, method), [])
        does = steps.pop(0) if steps else Does()
        self._free[worker] = max(self._free[worker], self.clock.now) + does.after_s
        value = (method, index, generation, before) if does.outcome is None else does.outcome
        self._done.append((self._free[worker], value))
        self._of.append(worker)
        return len(self._done) - 1

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        assert 0 < count <= len(references) == len(set(references))
        assert timeout_s >= 0
        self.waits += 1
        assert self.waits < 10_000, "it asks over and over"
        last = sorted(self._done[reference][0] for reference in references)[count - 1]
        until = min(last, self.clock.now + timeout_s)
        assert until < NEVER, "nothing will ever come"
        self.clock.now = max(self.clock.now, until)
        return [reference for reference in references if self._done[reference][0] <= self.clock.now]

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        assert all(self._done[reference][0] <= self.clock.now for reference in references)
        return [self._done[reference][1] for reference in references]

    def put(self, value: Any) -> Any:
        self.puts.append(value)
        return "stored", len(self.puts) - 1

    def kill(self, worker: Any) -> None:
        self.killed.append(worker)
        gone = ProcessLostError("killed")
        for reference, (done, _) in enumerate(self._done):
            if self._of[reference] == worker and done > self.clock.now:
                self._done[reference] = self.clock.now, gone

    def stack_of(self, index: int) -> Stack | None:
        return self.stacks.get(index)

    def asked(self, index: int, method: str = SAMPLE) -> list[tuple[int, tuple[Any, ...]]]:
        """Generation and arguments of all calls of a method of an index's workers."""
        found = [call for call in self.calls if (call.index, call.method) == (index, method)]
        return [(call.generation, call.arguments) for call in found]


def update(version: int) -> Update:
    return Update(version, 100 * version, {"a": {"w": version}}, {})


def value(index: int, generation: int, number: int, method: str = SAMPLE) -> Reply:
    return Reply(index, (method, index, generation, number))


def ask(workers: RemoteWorkers, *indices: int) -> None:
    """Requests a fragment from each of these workers, in this order."""
    for index in indices:
        workers.request(index, SAMPLE)


def all_replies(workers: RemoteWorkers) -> list[Reply]:
    """Collects until no request is in flight."""
    found = []
    while workers.requests_in_flight:
        found += workers.collect()
    return found
