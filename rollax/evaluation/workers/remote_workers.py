"""`RemoteWorkers`: requests under way in workers of other processes, and the restart of those that fail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollax.evaluation.messages import Update
from rollax.evaluation.workers.failures import FailureRules, Failures, hung, no_worker_left
from rollax.evaluation.workers.processes import Processes

_FOREVER = float("inf")
_STOP_S = 5.0  # how long environments may take to close before their processes end
_LOOKS = 50  # how often in the time after which a worker counts as hung it is looked for those


class Reply(NamedTuple):
    """What a request for a fragment, or for gradients, has brought."""

    index: int
    value: Any


@dataclass(slots=True)
class _Worker:
    handle: Any
    started: bool  # it has answered once
    since: float  # time.monotonic() of its last answer, or of the request before which it had nothing to do
    version: int = -1  # of the last update that was sent to it
    under_way: dict[Any, str] = field(default_factory=dict)  # reference -> method


class RemoteWorkers:
    """Workers in other processes, by index from 1. No call waits but `collect` and `call_all`.

    A worker that dies, raises or hangs is handled by the rules: it is started anew with its index, the last update and
    the requests that it had under way, or the run goes on without it, or its error is raised.

    Args:
        processes: runs the workers.
        count: how many.
        rules: for those that fail.
        made_on_request: the workers are to be made by a call of `make` after their process has started.
    """

    def __init__(
        self,
        processes: Processes,
        count: int,
        rules: FailureRules = FailureRules(),  # noqa: B008  it is frozen
        *,
        made_on_request: bool = False,
    ) -> None:
        self._processes = processes
        self._made_on_request = made_on_request
        self.failures = Failures(rules)
        self._update: Any = None
        self._version = 0
        self._owner: dict[Any, int] = {}  # reference of a request under way -> worker
        self._restarts: dict[int, tuple[float, list[str]]] = {}  # worker -> when, and the requests that were lost
        self._next_look = 0.0
        self._workers = {index: self._start(index) for index in range(1, count + 1)}

    @classmethod
    def of(cls, workers: Sequence[Any] | RemoteWorkers) -> RemoteWorkers:
        """A pool of Ray actors that somebody has made; one that is a pool already comes back."""
        if isinstance(workers, RemoteWorkers):
            return workers
        if not workers:
            nobody: Any = None
            return cls(nobody, 0)
        # Only now: without remote workers nothing of Ray is loaded.
        from rollax.evaluation.workers.ray_processes import RayHandles

        return cls(RayHandles(workers), len(workers))

    def __len__(self) -> int:
        return len(self._workers) + len(self._restarts)

    @property
    def indices(self) -> list[int]:
        """Of the workers that there are, or will be again."""
        return sorted({*self._workers, *self._restarts})

    @property
    def requests_under_way(self) -> int:
        """Requests whose reply is still to come."""
        return len(self._owner) + sum(len(methods) for _, methods in self._restarts.values())

    def publish(self, update: Update) -> None:
        """What workers act with from their next request on: it is stored once, for all of them."""
        self._update, self._version = self._processes.put(update), update.version

    def request(self, index: int, method: str) -> None:
        """Asks a worker for a fragment (`sample_fragment`, `sample_gradients`), with the last update if it is new."""
        if index in self._restarts:
            self._restarts[index][1].append(method)
            return
        worker = self._workers.get(index)
        if worker is None:
            return  # it has been given up since it was last heard of
        if not worker.under_way:
            worker.since = time.monotonic()
        news = ()
        if worker.version != self._version and self._update is not None:
            news, worker.version = (self._update,), self._version
        self._send(index, worker, method, *news)

    def collect(self, timeout_s: float = _FOREVER) -> list[Reply]:
        """The replies that have come; waits for one at least, as long as any request is under way.

        Raises:
            WorkerError: no worker is left.
            Exception: what a worker raised, where the rules let nothing else be done.
        """
        until = time.monotonic() + timeout_s
        while self._owner or self._restarts:
            now = time.monotonic()
            self._restart_those_due(now)
            self._look_for_hung(now)
            replies = self._take_ready(min(until, self._wake_up()) - now)
            if replies or time.monotonic() >= until:
                return replies
        return []

    def call_all(self, method: str, *arguments: Any) -> dict[int, Any]:
        """What a method of every worker returned, by index; waits for all. One that fails meanwhile is missing."""
        return self.call_each(method, dict.fromkeys(self._workers, arguments))

    def call_each(self, method: str, arguments_of: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """The same for some workers, each with arguments of its own."""
        called = {
            self._processes.call(self._workers[index].handle, method, *arguments): index
            for index, arguments in arguments_of.items()
            if index in self._workers
        }
        timeout_s = self.failures.rules.timeout_s
        ready = self._processes.wait(list(called), len(called), timeout_s) if called else []
        values: dict[int, Any] = {}
        for reference, outcome in zip(ready, self._processes.outcomes(ready), strict=True):
            if isinstance(outcome, Exception):
                self._failed(called[reference], outcome)
            else:
                values[called[reference]] = outcome
        for reference in called.keys() - set(ready):
            self._failed(called[reference], hung(called[reference], timeout_s, starting=False))
        return dict(sorted(values.items()))

    def make_all(self) -> None:
        """Waits until all workers are made.

        Raises:
            Exception: what making one of them raised; all are stopped then.
        """
        try:
            rules = self.failures.rules
            made = {next(iter(worker.under_way)): index for index, worker in self._workers.items() if worker.under_way}
            ready = self._processes.wait(list(made), len(made), rules.start_timeout_s) if made else []
            for outcome in self._processes.outcomes(ready):
                if isinstance(outcome, Exception):
                    raise outcome
            late = [made[reference] for reference in made.keys() - set(ready)]
            if late:
                raise hung(late[0], rules.start_timeout_s, starting=True)
            for reference in ready:
                self._settled(made[reference], reference)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Closes the environments of all workers and ends their processes."""
        workers, self._workers, self._restarts, self._owner = self._workers, {}, {}, {}
        if not workers:
            return
        stopping = [self._processes.call(worker.handle, "stop") for worker in workers.values() if worker.started]
        if stopping:
            self._processes.wait(stopping, len(stopping), _STOP_S)
        for worker in workers.values():
            self._processes.kill(worker.handle)

    def _start(self, index: int) -> _Worker:
        worker = _Worker(self._processes.start(index), started=not self._made_on_request, since=time.monotonic())
        if self._made_on_request:
            self._send(index, worker, "make")
        return worker

    def _send(self, index: int, worker: _Worker, method: str, *arguments: Any) -> None:
        reference = self._processes.call(worker.handle, method, *arguments)
        worker.under_way[reference] = method
        self._owner[reference] = index

    def _take_ready(self, timeout_s: float) -> list[Reply]:
        references = list(self._owner)
        if not references:
            time.sleep(max(min(timeout_s, 0.05), 0.0))  # all that there are wait for their restart
            return []
        ready = self._processes.wait(references, 1, max(timeout_s, 0.0))
        if ready and len(references) > 1:
            ready = self._processes.wait(references, len(references), 0.0)
        replies = []
        for reference, outcome in zip(ready, self._processes.outcomes(ready), strict=True):
            index = self._owner.get(reference)
            if index is None:
                continue  # of a worker that has failed in another of its requests
            if isinstance(outcome, Exception):
                self._failed(index, outcome)
            elif self._settled(index, reference) != "make":
                self.failures.succeeded(index)
                replies.append(Reply(index, outcome))
        return replies

    def _settled(self, index: int, reference: Any) -> str:
        worker = self._workers[index]
        del self._owner[reference]
        worker.started, worker.since = True, time.monotonic()
        return worker.under_way.pop(reference)

    def _failed(self, index: int, error: Exception) -> None:
        """Ends a worker that failed, and decides what becomes of its requests."""
        if index not in self._workers:
            return
        error.add_note(f"(in rollout worker {index})")
        worker = self._workers.pop(index)
        for reference in worker.under_way:
            del self._owner[reference]
        self._processes.kill(worker.handle)
        delay = self.failures.delay_before_restart(index, error)
        if delay is not None:
            lost = [method for method in worker.under_way.values() if method != "make"]
            self._restarts[index] = (time.monotonic() + delay, lost)
        elif not len(self):
            raise no_worker_left(self.failures.last)

    def _restart_those_due(self, now: float) -> None:
        for index in [index for index, (due, _) in self._restarts.items() if due <= now]:
            _, lost = self._restarts.pop(index)
            self._workers[index] = self._start(index)
            for method in lost:
                self.request(index, method)

    def _look_for_hung(self, now: float) -> None:
        if now < self._next_look:
            return
        rules = self.failures.rules
        self._next_look = now + min(rules.timeout_s, rules.start_timeout_s) / _LOOKS
        for index, worker in list(self._workers.items()):
            limit = rules.timeout_s if worker.started else rules.start_timeout_s
            if worker.under_way and now - worker.since > limit:
                self._failed(index, hung(index, now - worker.since, starting=not worker.started))

    def _wake_up(self) -> float:
        return min([self._next_look, *(due for due, _ in self._restarts.values())])
