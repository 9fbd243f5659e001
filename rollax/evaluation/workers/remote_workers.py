"""`RemoteWorkers`: requests under way in workers of other processes, and the restart of those that fail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rollax.errors import WorkerError
from rollax.evaluation.messages import Update
from rollax.evaluation.workers.calls import Call, Reply, Worker
from rollax.evaluation.workers.failures import FailureRules, Failures, hung, in_worker, no_worker_left
from rollax.evaluation.workers.processes import Processes

_FOREVER = float("inf")
_STOP_S = 5.0  # how long environments may take to close before their processes end
_LOOKS = 50  # how often in the time after which a worker counts as hung it is looked for those


class RemoteWorkers:
    """Workers in other processes, by index from 1. Only `collect`, `make_all` and calls wait.

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
        self._processes, self._count = processes, count
        self._made_on_request = made_on_request
        self.failures = Failures(rules)
        self._update: Any = None
        self._version = 0
        self._owner: dict[Any, int] = {}  # reference of a call under way -> worker
        self._arrived: list[Reply] = []  # nobody has collected them yet
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

    def __repr__(self) -> str:
        return f"RemoteWorkers(count={self._count}, healthy={self.healthy})"

    def __len__(self) -> int:
        return len(self._workers) + len(self._restarts)

    def __bool__(self) -> bool:
        """Whether it is they who sample, even if none of them is left."""
        return self._count > 0

    @property
    def indices(self) -> list[int]:
        """Of the workers that there are, or will be again."""
        return sorted({*self._workers, *self._restarts})

    @property
    def healthy(self) -> int:
        """Workers that are made, and have not failed since."""
        return sum(worker.started for worker in self._workers.values())

    @property
    def references(self) -> list[Any]:
        """Of the calls under way, for whoever waits for other calls too."""
        return list(self._owner)

    @property
    def requests_under_way(self) -> int:
        """Requests whose reply is still to be collected."""
        sent = sum(call.kind == "request" for worker in self._workers.values() for call in worker.under_way.values())
        return sent + len(self._arrived) + sum(len(methods) for _, methods in self._restarts.values())

    def publish(self, update: Update) -> None:
        """What workers act with from their next request on: it is stored once, for all of them.

        Raises:
            WorkerError: no worker is left.
        """
        if not len(self):
            raise no_worker_left(self.failures.last)
        self._update, self._version = self._processes.put(update), update.version

    def request(self, index: int, method: str) -> None:
        """Asks a worker for a fragment (`sample_fragment`, `sample_gradients`), with the last update if it is new."""
        if index in self._restarts:
            self._restarts[index][1].append(method)
            return
        worker = self._workers.get(index)
        if worker is None:
            return  # it has been given up since it was last heard of
        news = ()
        if worker.version != self._version and self._update is not None:
            news, worker.version = (self._update,), self._version
        self._send(index, worker, Call(method, "request"), *news)

    def short_of(self, count: int) -> list[int]:
        """The workers that have fewer requests under way, or uncollected, than this; each as often as one is missing.

        Args:
            count: requests that each worker is to have.
        """
        there = dict.fromkeys(self.indices, 0)
        for index, worker in self._workers.items():
            there[index] += sum(call.kind == "request" for call in worker.under_way.values())
        for index, (_, methods) in self._restarts.items():
            there[index] += len(methods)
        for reply in self._arrived:
            if reply.index in there:
                there[reply.index] += 1
        return [index for number in range(count) for index in there if there[index] <= number]

    def collect(self, timeout_s: float = _FOREVER) -> list[Reply]:
        """The replies that have come; waits for one at least, as long as any request is under way.

        Raises:
            WorkerError: no worker is left.
            Exception: what a worker raised, where the rules let nothing else be done.
        """
        until = time.monotonic() + timeout_s
        while self.requests_under_way:
            self._take_ready(0.0 if self._arrived else until - time.monotonic())
            if self._arrived or time.monotonic() >= until:
                break
        arrived, self._arrived = self._arrived, []
        return arrived

    def forget_requests(self) -> None:
        """Nobody wants the replies any more that are still to be collected."""
        self._arrived.clear()
        for _, methods in self._restarts.values():
            methods.clear()
        for worker in self._workers.values():
            for reference, call in worker.under_way.items():
                if call.kind == "request":
                    worker.under_way[reference] = call._replace(kind="forgotten")

    def call_all(self, method: str, *arguments: Any, raises: bool = False) -> dict[int, Any]:
        """What a method of every worker returned, by index; waits for all. One that fails meanwhile is missing.

        Args:
            method: of the workers.
            arguments: that it is called with.
            raises: what the method raises is no failure of the worker, but raised here.
        """
        return self.call_each(method, dict.fromkeys(self._workers, arguments), raises=raises)

    def call_each(
        self, method: str, arguments_of: Mapping[int, tuple[Any, ...]], *, raises: bool = False
    ) -> dict[int, Any]:
        """The same for some workers, each with arguments of its own."""
        called = {
            self._send(index, self._workers[index], Call(method, "call"), *arguments): index
            for index, arguments in arguments_of.items()
            if index in self._workers
        }
        outcomes: dict[Any, Any] = {}
        while self._owner.keys() & called.keys():
            outcomes |= self._take_ready(_FOREVER, returned=raises)
        values = {called[reference]: outcome for reference, outcome in outcomes.items() if reference in called}
        for index in sorted(values):
            if raises and isinstance(values[index], Exception):
                raise values[index]
        return dict(sorted(values.items()))

    def make_all(self) -> None:
        """Waits until all workers are made. Those whose process is lost meanwhile are handled by the rules.

        Raises:
            Exception: what making one of them raised, as soon as it has; all are stopped then.
        """
        limit = self.failures.rules.start_timeout_s
        until = time.monotonic() + limit
        try:
            while self._owner or self._restarts:
                self._restart_those_due()
                wake_up = min([until, *(due for due, _ in self._restarts.values())])
                ready = self._wait_for_one(wake_up - time.monotonic())
                if not ready and time.monotonic() >= until:
                    raise hung(min(self._owner.values(), default=0), limit, starting=True)
                for reference, outcome in zip(ready, self._processes.outcomes(ready), strict=True):
                    if isinstance(outcome, WorkerError):  # its process is gone: nobody knows what making it comes to
                        self._failed(self._owner[reference], outcome)
                    elif isinstance(outcome, Exception):
                        outcome.add_note(in_worker(self._owner[reference]))
                        raise outcome
                    else:
                        self._settled(self._owner[reference], reference)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Closes the environments of all workers and ends their processes."""
        workers = self._workers
        self._workers, self._restarts, self._owner, self._arrived = {}, {}, {}, []
        stopping = []
        for worker in workers.values():
            if worker.started:
                with suppress(WorkerError):  # it cannot be called any more, and so has stopped
                    stopping.append(self._processes.call(worker.handle, "stop"))
        if stopping:
            self._processes.wait(stopping, len(stopping), _STOP_S)
        for worker in workers.values():
            self._processes.kill(worker.handle)

    def _start(self, index: int) -> Worker:
        worker = Worker(self._processes.start(index), started=not self._made_on_request, since=time.monotonic())
        if self._made_on_request:
            self._send(index, worker, Call("make", "make"))
        return worker

    def _send(self, index: int, worker: Worker, call: Call, *arguments: Any) -> Any:
        if not worker.under_way:
            worker.since = time.monotonic()
        reference = self._processes.call(worker.handle, call.method, *arguments)
        # In this order, and the other one as it ends: an interrupt between leaves none that is waited for in vain.
        self._owner[reference] = index
        worker.under_way[reference] = call
        return reference

    def _take_ready(self, timeout_s: float, *, returned: bool = False) -> dict[Any, Any]:
        """Books what has come, once anything has or the time has passed; sees to restarts and to those that hang.

        Args:
            timeout_s: how long to wait.
            returned: what a call of `call_each` raised is an outcome like others.
        Returns:
            reference -> outcome, of the calls of `call_each`.
        """
        self._restart_those_due()
        timeout_s = max(min(timeout_s, self._wake_up() - time.monotonic()), 0.0)
        references, ready = list(self._owner), self._wait_for_one(timeout_s)
        if ready and len(references) > 1:
            ready = self._processes.wait(references, len(references), 0.0)
        outcomes = {}
        for reference, outcome in zip(ready, self._processes.outcomes(ready), strict=True):
            index = self._owner.get(reference)
            if index is None:
                continue  # of a worker that has failed in another of its requests
            if reference not in self._workers[index].under_way:
                del self._owner[reference]  # an interrupt has cut its booking short
                continue
            called = self._workers[index].under_way[reference].kind == "call"
            if isinstance(outcome, Exception) and not (called and returned and not isinstance(outcome, WorkerError)):
                self._failed(index, outcome)
                continue
            kind = self._settled(index, reference)
            if kind == "call":
                outcomes[reference] = outcome
            elif kind == "request":
                self.failures.succeeded(index)
                self._arrived.append(Reply(index, outcome))
        self._look_for_hung()  # only now: who has answered while nobody was listening has not hung
        return outcomes

    def _wait_for_one(self, timeout_s: float) -> list[Any]:
        """The reference of a call that is over, if one is within the time."""
        timeout_s = max(timeout_s, 0.0)
        if self._owner:
            return self._processes.wait(list(self._owner), 1, timeout_s)
        time.sleep(timeout_s)  # all that there are wait for their restart
        return []

    def _settled(self, index: int, reference: Any) -> str:
        worker = self._workers[index]
        kind = worker.under_way.pop(reference).kind
        del self._owner[reference]
        worker.started, worker.since = True, time.monotonic()
        return kind

    def _failed(self, index: int, error: Exception) -> None:
        """Ends a worker that failed, and decides what becomes of its requests."""
        error.add_note(in_worker(index))
        worker = self._workers.pop(index)
        for reference in worker.under_way:
            self._owner.pop(reference, None)
        self._processes.kill(worker.handle)
        delay = self.failures.delay_before_restart(index, error)
        if delay is not None:
            lost = [call.method for call in worker.under_way.values() if call.kind == "request"]
            self._restarts[index] = (time.monotonic() + delay, lost)
        elif not len(self):
            raise no_worker_left(self.failures.last)

    def _restart_those_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, (due, _) in self._restarts.items() if due <= now]:
            _, lost = self._restarts.pop(index)
            self._workers[index] = self._start(index)
            for method in lost:
                self.request(index, method)

    def _look_for_hung(self) -> None:
        now, rules = time.monotonic(), self.failures.rules
        if now < self._next_look:
            return
        self._next_look = now + min(rules.timeout_s, rules.start_timeout_s) / _LOOKS
        for index, worker in list(self._workers.items()):
            limit = rules.timeout_s if worker.started else rules.start_timeout_s
            if worker.under_way and now - worker.since > limit:
                self._failed(index, hung(index, now - worker.since, starting=not worker.started))

    def _wake_up(self) -> float:
        return min([self._next_look, *(due for due, _ in self._restarts.values())])
