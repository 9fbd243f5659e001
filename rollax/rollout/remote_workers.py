"""Rollout workers in other processes: their pending requests, their evaluations, and their Ray actors."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from rollax.config import TrainerConfig
from rollax.env.registrations import register_all, registrations
from rollax.errors import ConfigError
from rollax.processes.actor_pool import Actor, ActorPool, Call
from rollax.processes.actors import Actors, unsendable
from rollax.processes.failure_rules import FailureRules, Failures
from rollax.rollout.messages import Update
from rollax.rollout.metrics import EpisodeMetrics

if TYPE_CHECKING:
    from rollax.processes.ray_actors import RayActors

_NAME = "rollout worker"
_ADVICE = (
    "look for an endless loop in the environment (with ARS and ES also for an episode that never ends); if it is only "
    "slow, raise sample_timeout_s or lower rollout_fragment_length (with ARS and ES num_envs_per_worker)"
)


class Reply(NamedTuple):
    """The value that a worker returned for a request."""

    index: int
    value: Any


class _Sent:
    """The last update sent to a worker."""

    update: Any = None


class RemoteWorkers(ActorPool):
    """Workers in other processes, by index from 1.

    A worker that is restarted gets the last update and the pending requests of its predecessor.

    Args:
        actors: runs the workers.
        count: the number of workers.
        rules: rules for failed workers.
        makes: whether workers are made by a call of `make` after their process has started.
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
        failures = Failures(rules, _NAME, _ADVICE)
        super().__init__(actors, range(1, count + 1), failures, makes=makes, stop="stop", state=_Sent)

    @classmethod
    def of(cls, workers: Sequence[Any] | RemoteWorkers) -> RemoteWorkers:
        """A pool of existing Ray actors, whose processes it does not end; a pool is returned unchanged.

        Raises ConfigError for workers that are not Ray actors.
        """
        if isinstance(workers, RemoteWorkers):
            return workers
        handles, no_actors = list(workers) if isinstance(workers, Iterable) else [workers], None
        for handle in handles:
            if not hasattr(getattr(handle, "sample_fragment", None), "remote"):
                what = "A remote worker is not a Ray actor of a rollout worker."
                fix = "make them by RolloutWorker.as_remote().remote(...), or leave remote_workers out"
                raise ConfigError(what, "remote_workers", type(handle).__name__).expected("a list of Ray actors", fix)
        if not handles:
            return cls(no_actors, 0)  # pyright: ignore[reportArgumentType]
        from rollax.processes.cluster import started_ray
        from rollax.processes.ray_actors import RayActors

        start = lambda index, restarts: handles[index - 1]  # noqa: E731
        return cls(RayActors(started_ray("num_workers"), start, owned=False), len(handles))

    @property
    def sample_in_background(self) -> bool:
        """Whether the workers sample in background threads (`BackgroundSampling`); false for a pool made by `of`."""
        return any(actor.made is True for actor in self._live.values())

    @property
    def requests_in_flight(self) -> int:
        """The number of requests whose reply is not collected yet."""
        there = self.indices
        return sum(not call.lost or call.index in there for call in self.pending)

    def publish(self, update: Update) -> None:
        """Stores an update, which each worker receives with its next request; WorkerError if no worker is left."""
        if not len(self):
            raise self.failures.unavailable()
        self._update = self._actors.put(update)

    def request(self, index: int, method: str, *arguments: Any) -> None:
        """Requests a rollout (`sample_fragment`, `sample_apart`, `sample_gradients`) or the result of `perform`.

        The last update is sent as the last argument, if this worker has not received it yet.
        """
        self.send(index, method, *arguments)

    def short_of(self, count: int) -> list[int]:
        """The workers with fewer than `count` pending requests, each repeated once per missing request."""
        pending = Counter(call.index for call in self.pending)
        return [index for number in range(count) for index in self.indices if pending[index] <= number]

    def collect(self, timeout_s: float = float("inf")) -> list[Reply]:
        """The available replies; waits up to `timeout_s` seconds for the first one, while a request is pending.

        If a worker has no result yet, its request is repeated, so that it can execute other calls in between.

        Raises:
            WorkerError: no worker is left.
            Exception: the error of a worker, if the config neither restarts nor ignores failed workers.
        """
        until = time.monotonic() + timeout_s
        while True:
            replies = []
            for call in self.ready(until - time.monotonic()):
                if call.lost or _is_empty(call.value):
                    self.request(call.index, call.method, *call.arguments)
                else:
                    self.failures.succeeded(call.index)
                    replies.append(Reply(call.index, call.value))
            if replies or not self.pending or time.monotonic() >= until:
                return replies

    def apply(self, function: Callable[[Any], Any]) -> dict[int, Any]:
        """Index -> result of a function of each worker; raises exceptions of the function.

        Raises:
            ConfigError: the function cannot be sent.
            WorkerError: no worker is left, as after `stop`.
        """
        if not len(self):
            raise self.failures.unavailable()
        try:
            sent = self._actors.put(function)
        except Exception as error:
            outer = _outer_variables(function)
            raise unsendable(
                error,
                "foreach_worker" + (f", a function with the outer variables {', '.join(outer)}" if outer else ""),
                expected="a function that cloudpickle can store, with all that it uses",
                fix="do not use the trainer, a worker or a callback in the function: assign the numbers that it needs "
                "to variables before, as in `length = trainer.iteration`",
            ) from error
        return self.call_all("apply", sent, raises=True)

    def _arguments(self, actor: Actor, call: Call) -> tuple[Any, ...]:
        # Compares objects, not versions: a restore resets the version, and the next update may have an earlier one.
        if not call.collected or actor.state.update is self._update:
            return call.arguments
        actor.state.update = self._update
        return (*call.arguments, self._update)


def _outer_variables(function: Callable[..., Any]) -> list[str]:
    try:
        found = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # a callable object; a variable without a value yet
        return []
    return [*found.nonlocals, *found.globals]


def _is_empty(value: Any) -> bool:
    """Whether a worker that samples in the background had no fragment."""
    return (value[0] if isinstance(value, tuple) else value) is None


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


def ray_worker_class(ray: Any, worker_class: type, **reserved: Any) -> Any:
    """The Ray actor class of `RolloutWorker` or a subclass; see `RolloutWorker.as_remote`.

    With `make_now=False`, `make()` makes the worker and raises its original exceptions. Ray reports only the text of
    exceptions in a constructor.
    """
    from rollax.processes.ray_actors import actor_class
    from rollax.processes.stacks import writing_stacks

    registered = registrations(ray.cloudpickle.dumps)

    class RemoteWorker(worker_class):
        def __init__(self, *args: Any, make_now: bool = True, **kwargs: Any) -> None:
            register_all(registered)
            self.worker_index = kwargs.get("worker_index", 0)
            self._make = partial(super().__init__, *args, **kwargs)
            if make_now:
                self._make()

        def make(self) -> bool:
            """Makes the worker; returns whether it samples in the background."""
            self._make()
            return self.samples_in_background

        @ray.method(num_returns=2)
        def sample_apart(self, update: Any = None) -> tuple[Any, Any]:
            """A rollout without its rows, and the rows separately, which the driver can forward by reference."""
            rollout = self.sample_fragment(update)
            return (None, None) if rollout is None else (replace(rollout, batch=None), rollout.batch)

    RemoteWorker.__name__ = RemoteWorker.__qualname__ = worker_class.__name__
    return actor_class(ray, writing_stacks(RemoteWorker), **reserved)


def ray_workers(config: TrainerConfig, worker_class: type, arguments: Mapping[str, Any]) -> RayActors:
    """The actors of a config; each is made by a call of `make`.

    Args:
        config: config of the trainer.
        worker_class: `RolloutWorker` or a subclass.
        arguments: arguments of its constructor, without `worker_index` and `restarts`.
    Raises:
        ConfigError: Ray does not start; the arguments cannot be pickled; or the cluster is only this machine, and CPUs,
            GPUs, resources or memory are lacking.
    """
    from rollax.processes.cluster import check_processes_fit, refuse_lacking, started_here, started_ray
    from rollax.processes.ray_actors import RayActors, stored
    from rollax.processes.stacks import StackFolder

    # Workers that do not record are the workers that evaluate.
    key = "num_workers" if arguments.get("record", True) else "evaluation_num_workers"
    ray = started_ray(key, config.ray_address)
    resources = dict(config.custom_resources_per_worker)
    num_cpus, num_gpus = config.num_cpus_per_worker, config.num_gpus_per_worker
    each = {"CPU": num_cpus, "GPU": num_gpus, **resources}
    count = config.num_workers + config.evaluation_num_workers  # evaluation workers are made later, beside the others
    if started_here(ray):
        refuse_lacking(
            ray,
            {name: amount * count for name, amount in each.items()},
            what="The workers reserve more resources than the cluster has.",
            where=f"config keys {key!r}, 'num_cpus_per_worker', 'num_gpus_per_worker', 'custom_resources_per_worker'",
            fix="lower the number of workers or what each reserves (num_cpus_per_worker=0 or 0.5 shares cores), or "
            "connect to a larger cluster with ray_address",
        )
    of_envs = config.num_envs_per_worker if config.remote_worker_envs else 0
    where = f"config keys {key!r}, 'num_envs_per_worker' and 'remote_worker_envs'"
    check_processes_fit(ray, count * (1 + of_envs), where, "lower them, or use a larger cluster")
    made = ray_worker_class(ray, worker_class, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)
    references = stored(ray, arguments, f"{key} above 0")
    folder, rules = StackFolder(), FailureRules.of(config)

    def start(index: int, restarts: int) -> Any:
        stacks = folder.file(index, rules.timeout_s, rules.start_timeout_s)
        return made.remote(**references, worker_index=index, restarts=restarts, make_now=False, stacks=stacks)

    return RayActors(ray, start, stacks=folder)
