"""`RemoteEvaluation`: whole episodes that workers in other processes play."""

from __future__ import annotations

from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

from rollax.rollout.messages import Update
from rollax.rollout.metrics import EpisodeMetrics

if TYPE_CHECKING:
    from rollax.rollout.remote_workers import RemoteWorkers, Reply


class RemoteEvaluation:
    """An exact number of episodes, which begin when this object is made. Each worker plays a fixed share.

    Args:
        remote: workers with nothing else to do; earlier requests are dropped.
        count: number of episodes, 1 or more.
        most: the most episodes of one request, because `sample_timeout_s` limits the time of a request.
        update: the weights and running statistics of the policies that play.
    Raises:
        WorkerError: no worker is left.
    """

    def __init__(self, remote: RemoteWorkers, count: int, most: int, update: Update) -> None:
        self._remote, self._count, self._most = remote, count, most
        self._replies: list[Reply] = []
        remote.forget()
        remote.publish(update)
        self._request(count)

    def wait(self) -> list[EpisodeMetrics]:
        """The metrics of the episodes, in the order of the workers.

        If a worker fails and is not restarted, the other workers play its episodes.

        Raises:
            WorkerError: no worker is left.
            Exception: the error of a worker, if the config neither restarts nor ignores failed workers.
        """
        while True:
            while self._remote.requests_in_flight:
                self._replies += self._remote.collect()
            played = sum(len(reply.value) for reply in self._replies)
            if played == self._count:
                return [episode for reply in sorted(self._replies, key=attrgetter("index")) for episode in reply.value]
            self._request(self._count - played)

    def _request(self, count: int) -> None:
        indices = self._remote.indices
        if not indices:
            raise self._remote.failures.unavailable()
        for place, index in enumerate(indices):
            share = len(range(place, count, len(indices)))
            for first in range(0, share, self._most):
                self._remote.request(index, "perform", methodcaller("evaluate", min(self._most, share - first)))
