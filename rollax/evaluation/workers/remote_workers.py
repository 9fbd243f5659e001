"""`RemoteWorkers`: requests for fragments and gradients, under way in rollout workers of other processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rollax.evaluation.messages import Update
from rollax.processes.actors import Actors
from rollax.processes.failures import FailureRules, Failures
from rollax.processes.pool import Actor, ActorPool, Call

_NAME = "rollout worker"
_ADVICE = (
    "look for an endless loop in the environment; if it is only slow, raise sample_timeout_s or lower "
    "rollout_fragment_length"
)


class Reply(NamedTuple):
    """What a worker returned for a request."""

    index: int
    value: Any


class _Sent:
    """What a worker has been sent."""

    version = -1  # of the last update


class RemoteWorkers(ActorPool):
    """Workers in other processes, by index from 1.

    A worker that is restarted gets the last update and the requests that its predecessor had under way.

    Args:
        actors: runs the workers.
        count: how many.
        rules: for those that fail.
        makes: the workers are made by a call of `make` after their process has started.
    """

    def __init__(
        self,
        actors: Actors,
        count: int,
        rules: FailureRules = FailureRules(),  # noqa: B008  it is frozen
        *,
        makes: bool = False,
    ) -> None:
        self._update: Any = None
        self._version = 0
        failures = Failures(rules, _NAME, _ADVICE)
        super().__init__(actors, range(1, count + 1), failures, makes=makes, stop="stop", state=_Sent)

    @classmethod
    def of(cls, workers: Sequence[Any] | RemoteWorkers) -> RemoteWorkers:
        """A pool of Ray actors that were made elsewhere, and stay; a pool is returned as it is."""
        if isinstance(workers, RemoteWorkers):
            return workers
        handles, no_actors = list(workers), None
        if not handles:
            return cls(no_actors, 0)  # pyright: ignore[reportArgumentType]
        # Ray is loaded only where there are remote workers.
        from rollax.processes.cluster import started_ray
        from rollax.processes.ray_actors import RayActors

        start = lambda index, restarts: handles[index - 1]  # noqa: E731
        return cls(RayActors(started_ray("num_workers"), start, owned=False), len(handles))

    @property
    def requests_under_way(self) -> int:
        """Requests whose reply is still to be collected."""
        there = self.indices
        return sum(not call.lost or call.index in there for call in self.pending)

    def publish(self, update: Update) -> None:
        """What workers act with from their next request on. It is stored once, for all of them.

        Raises:
            WorkerError: no worker is left.
        """
        if not len(self):
            raise self.failures.unavailable()
        self._update, self._version = self._actors.put(update), update.version

    def request(self, index: int, method: str) -> None:
        """Requests a fragment (`sample_fragment`, `sample_apart`, `sample_gradients`), with the last update if new."""
        self.send(index, method)

    def short_of(self, count: int) -> list[int]:
        """The workers that have fewer than `count` requests pending; each as often as one is missing."""
        pending = Counter(call.index for call in self.pending)
        return [index for number in range(count) for index in self.indices if pending[index] <= number]

    def collect(self, timeout_s: float = float("inf")) -> list[Reply]:
        """The replies that have come; waits for one at least, as long as any request is under way.

        Raises:
            WorkerError: no worker is left.
            Exception: what a worker raised, if it is neither restarted nor left out.
        """
        until = time.monotonic() + timeout_s
        while True:
            replies = []
            for call in self.ready(until - time.monotonic()):
                if call.lost:
                    self.request(call.index, call.method)
                else:
                    self.failures.succeeded(call.index)
                    replies.append(Reply(call.index, call.value))
            if replies or not self.is_pending or time.monotonic() >= until:
                return replies

    def _arguments(self, actor: Actor, call: Call) -> tuple[Any, ...]:
        if not call.collected or actor.state.version == self._version or self._update is None:
            return call.arguments
        actor.state.version = self._version
        return (self._update,)
