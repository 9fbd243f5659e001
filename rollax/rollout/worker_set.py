"""`WorkerSet`: the local worker of the learning process, and remote workers that sample for it."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from rollax.batch import DEFAULT_POLICY
from rollax.config import TrainerConfig
from rollax.core.cleanup import cleanup_on_error
from rollax.env.registry import EnvContext
from rollax.env.registry import env_creator as creator_of
from rollax.errors import ConfigError
from rollax.policy.policy_spec import PolicyClass, PolicySpec
from rollax.rollout.worker import RolloutWorker

if TYPE_CHECKING:
    from rollax.rollout.remote_workers import RemoteWorkers

NO_REMOTE_WORKERS = cast("RemoteWorkers", ())
"""Stands in for the pool if there are no remote workers: it is empty, and so false in a condition."""
log = logging.getLogger("rollax.sampling")


class WorkerSet:
    """The workers of a config. With `num_workers` 0 the local worker samples, and neither pools nor Ray are loaded.

    Args:
        arguments: of each `RolloutWorker`, as `worker_arguments` returns them.
        samples: false if no environment is stepped: there is only the local worker, without an environment.
    Attributes:
        local: has the policies that learn; with remote workers it has no environment.
        remote: the workers in other processes.
    Raises:
        ConfigError, SpaceError, EnvError, PolicyError: a worker cannot be made, here or in another process.
    """

    def __init__(self, arguments: Mapping[str, Any], *, samples: bool = True) -> None:
        config: TrainerConfig = arguments["config"]
        self._num_remote = config.num_workers if samples else 0
        arguments = {**arguments, "num_workers": self._num_remote}
        self.local = RolloutWorker(**arguments, samples=samples and not self._num_remote)
        self.remote = NO_REMOTE_WORKERS
        if self._num_remote:
            from rollax.processes.failure_rules import FailureRules
            from rollax.rollout.remote_workers import RemoteWorkers, ray_workers  # loaded only where it is used

            actors = ray_workers(config, RolloutWorker, arguments)
            self.remote = RemoteWorkers(actors, self._num_remote, FailureRules.of(config), makes=True)
            with cleanup_on_error(self.stop):
                self.remote.make_all()
        self._starts = 1  # the most starts of any worker, in this run and the runs that it continues
        self._process = os.getpid()
        self._records = samples and config.recording_key is not None
        if self._records:
            _RECORDING.add(self)

    @property
    def has_open_files(self) -> bool:
        """Whether these workers write `output` and are not stopped; false in a forked process."""
        return getattr(self, "_records", False) and self._process == os.getpid()

    def __del__(self) -> None:
        if self.has_open_files:
            log.warning("Workers with `output` were dropped without stop(): the episodes of their open files are lost.")

    def __repr__(self) -> str:
        return f"WorkerSet(local={self.local!r}, remote={self.remote!r})"

    def get_state(self) -> dict[str, Any]:
        """The workers' part of a checkpoint: the policies, and the sampling state of each process."""
        state = self.local.get_state()
        sampling = [state["sampling"]] if self.local.samples else []
        if self._num_remote:
            states = self.remote.call_all("get_sampling_state")
            sampling = [states.get(index) for index in range(1, self._num_remote + 1)]  # None: the worker has failed
        return {**state, "sampling": sampling, "starts": self._most_starts}

    @property
    def _most_starts(self) -> int:
        return max(self._starts, self.remote.most_starts) if self._num_remote else self._starts

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets a state from `get_state`, also from a run with another number of workers; new episodes begin.

        A worker without a state, or a worker that is restarted later, repeats no episodes of the saved run: it counts
        the starts of that run's workers as its own.
        """
        self.local.set_state({name: state[name] for name in ("policies", "filters")})
        states = {index: (values,) for index, values in enumerate(state["sampling"], start=1) if values is not None}
        starts = max(self._most_starts, state.get("starts", 1))
        samplers = self._num_remote or int(self.local.samples)
        new = {index: (starts,) for index in range(1, samplers + 1) if index not in states}
        self._starts = starts + bool(new)
        if self._num_remote:
            self.remote.count_starts_from(self._starts)
            self.remote.forget()  # pending requests use the previous weights
            self.remote.call_all("restart_episodes")  # also in workers without a state
            self.remote.call_all("set_filters", self.local.get_filters())
            self.remote.call_each("set_restarts", new)
            self.remote.call_each("set_sampling_state", states)
        elif self.local.samples:
            self.local.restart_episodes()
            if new:
                self.local.set_restarts(*new[1])
            else:
                self.local.set_sampling_state(*states[1])

    def foreach_worker(self, function: Callable[[RolloutWorker], Any]) -> list[Any]:
        """Calls a function with each remote worker, or with the local worker if there are none.

        Returns the results in the order of the workers. An exception of the function is raised here.

        Raises:
            ConfigError: the workers are in other processes, and the function cannot be pickled.
            WorkerError: the workers have been stopped, or none is left.
        """
        if self._num_remote:
            return list(self.remote.apply(function).values())
        return [self.local.apply(function)]

    def health(self) -> dict[str, Any]:
        """The number of workers that sample, the number of restarts, and the last error of each failed worker."""
        return self.remote.health() if self._num_remote else {"healthy": 1, "restarts": 0, "last_errors": {}}

    def restart_episodes(self) -> None:
        """Drops all running episodes, and the metrics of finished ones; fresh episodes begin."""
        if self._num_remote:
            self.remote.forget()  # pending requests may return finished episodes
            self.remote.call_all("restart_episodes")
        elif self.local.samples:
            self.local.restart_episodes()

    def stop(self) -> None:
        """Closes all environments and ends the other processes."""
        self._records = False
        try:
            if self._num_remote:
                self.remote.stop()
        finally:
            self.local.stop()


_RECORDING: weakref.WeakSet[WorkerSet] = weakref.WeakSet()


@atexit.register
def _stop_recording() -> None:
    """Closes the open files, because a program that ends without `stop` would lose their episodes."""
    for workers in list(_RECORDING):
        if workers.has_open_files:
            workers.stop()


def worker_arguments(config: TrainerConfig, policy_class: PolicyClass) -> dict[str, Any]:
    """The arguments of a `RolloutWorker`, by name."""
    config = config.for_workers()
    return {
        # Resolved here, because a name may be registered only in this process.
        "env_creator": _no_env if config.env is None else creator_of(config.env),
        "policy_cls_or_specs": config.multiagent.policies or {DEFAULT_POLICY: PolicySpec()},
        "policy_mapping_fn": config.multiagent.policy_mapping_fn,
        "config": config,
        "default_policy_class": policy_class,
    }


def _no_env(context: EnvContext) -> Any:
    raise ConfigError.missing(
        "environment", "config key 'env'", "a Gymnasium id, a registered name, a class, or a creator function"
    ).fix("set env (--env): learning from recorded data does not require one, but evaluation does")
