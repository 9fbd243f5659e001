"""`WorkerSet`: the worker of the process that learns, and those in other processes that sample for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollax.config import TrainerConfig
from rollax.env.registry import env_creator as creator_of
from rollax.evaluation.policy_map import DEFAULT_POLICY
from rollax.evaluation.rollout_worker import RolloutWorker
from rollax.evaluation.workers.failures import FailureRules
from rollax.evaluation.workers.remote_workers import RemoteWorkers
from rollax.policy.policy import Policy
from rollax.policy.spec import PolicySpec


class WorkerSet:
    """The workers that a config asks for. With `num_workers` 0 the local one samples, and nothing of Ray is loaded.

    Args:
        config: it.
        policy_class: what a policy spec without a class stands for.
    Attributes:
        local: holds the policies that learn; with remote workers it has no environment.
        remote: those in other processes.
    Raises:
        ConfigError, SpaceError, EnvError, PolicyError: what is wrong, wherever it was found.
    """

    def __init__(self, config: TrainerConfig, policy_class: type[Policy]) -> None:
        self.config = config
        self._arguments = worker_arguments(config, policy_class)
        self.local = RolloutWorker(**self._arguments, num_workers=config.num_workers, samples=config.num_workers == 0)
        self.remote = RemoteWorkers.of([])
        if config.num_workers:
            self.remote = self._started()

    def __repr__(self) -> str:
        return f"WorkerSet(local={self.local!r}, remote={self.remote!r})"

    def _started(self) -> RemoteWorkers:
        # Only now: without remote workers nothing of Ray is loaded.
        from rollax.evaluation.workers.ray_processes import RayProcesses

        config = self.config
        processes = RayProcesses(
            RolloutWorker,
            config.num_workers,
            {**self._arguments, "num_workers": config.num_workers},
            num_cpus=config.num_cpus_per_worker,
            num_gpus=config.num_gpus_per_worker,
            resources=dict(config.custom_resources_per_worker),
            ray_address=config.ray_address,
        )
        remote = RemoteWorkers(processes, config.num_workers, FailureRules.of(config), made_on_request=True)
        remote.make_all()
        return remote

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds of all workers: the policies, and how far sampling has come in each process."""
        if self.config.num_workers:
            states = self.remote.call_all("get_sampling_state")
            sampling = [states.get(index) for index in range(1, self.config.num_workers + 1)]  # None: it has failed
        else:
            sampling = [self.local.get_sampling_state()]
        return {**self.local.get_state(), "sampling": sampling}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of as many workers, or fewer or more, returned; fresh episodes begin."""
        self.local.set_state({name: state[name] for name in ("policies", "filters")})
        states = {index: (values,) for index, values in enumerate(state["sampling"], start=1) if values is not None}
        if self.config.num_workers:
            self.remote.forget_requests()  # of the run before, and its weights
            self.remote.call_all("restart_episodes")  # of those too that the state says nothing of
            self.remote.call_all("set_filters", self.local.get_filters())
            self.remote.call_each("set_sampling_state", states)
        elif 1 in states:
            self.local.set_sampling_state(*states[1])

    def foreach_worker(self, function: Callable[[RolloutWorker], Any]) -> list[Any]:
        """The function's results over the workers that sample, in their order.

        Raises:
            Exception: what the function raised in one of them.
        """
        if self.config.num_workers:
            return list(self.remote.call_all("apply", function, raises=True).values())
        return [self.local.apply(function)]

    def health(self) -> dict[str, Any]:
        """How many workers sample, how many restarts there were, and the last error of each that ever failed."""
        failures = self.remote.failures
        errors = {str(index): f"{type(error).__name__}: {error}" for index, error in sorted(failures.last.items())}
        return {
            "healthy": self.remote.healthy if self.config.num_workers else 1,
            "restarts": failures.restarts,
            "last_errors": errors,
        }

    def restart_episodes(self) -> None:
        """Drops all running episodes; fresh ones begin."""
        if self.config.num_workers:
            self.remote.call_all("restart_episodes")
        else:
            self.local.restart_episodes()

    def stop(self) -> None:
        """Closes all environments and ends the other processes."""
        self.remote.stop()
        self.local.stop()


def worker_arguments(config: TrainerConfig, policy_class: type[Policy]) -> dict[str, Any]:
    """What a `RolloutWorker` of a config takes, by name."""
    return {
        # Found here: a name may be registered in this process alone.
        "env_creator": creator_of(config.env),
        "policy_cls_or_specs": config.multiagent.policies or {DEFAULT_POLICY: PolicySpec()},
        "policy_mapping_fn": config.multiagent.policy_mapping_fn,
        "config": config,
        "default_policy_class": policy_class,
    }
