"""`RemoteEnvs`: Ray actors that each hold one sub-environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollax.env.copies import EnvCopies, check_spaces
from rollax.env.registry import registrations
from rollax.env.remote.env_host import EnvFacts, EnvHost
from rollax.env.restarting import EnvFailures
from rollax.processes.actors import Actors
from rollax.processes.cluster import started_ray
from rollax.processes.pool import ActorPool
from rollax.processes.ray_actors import RayActors, stored

_START_S = 60.0  # beyond the time limit, for a new process and the environment in it


class RemoteEnvs(ActorPool):
    """One actor for each sub-environment, by index from 0.

    One that raises is recreated in its process, one whose process ends or hangs in a new process.

    Args:
        actors: runs an `EnvHost` for each sub-environment.
        num_envs: the number of sub-environments.
        failures: counts failures, and decides whether those that raise are recreated.
    Attributes:
        facts: of all sub-environments.
    """

    def __init__(self, actors: Actors, num_envs: int, failures: EnvFailures) -> None:
        super().__init__(actors, range(num_envs), failures, makes=True, remakes=True, stop="close")
        made: dict[int, EnvFacts] = self.make_all()
        self.facts = made[0]
        try:
            for index, facts in made.items():
                where = f"{facts.name}, sub-environment {index}"
                check_spaces(facts, self.facts, where, may_lack_spaces=facts.several_agents)
        except BaseException:
            self.stop()
            raise
        self.make_arguments = (self.facts,)
        # At first there is no limit: many processes take long to start.
        failures.rules = replace(failures.rules, start_timeout_s=failures.rules.timeout_s + _START_S)

    def ask(self, index: int, method: str, *arguments: Any) -> Any:
        """The result of another method of an `EnvHost`; `EnvError` or `WorkerError` if there is none."""
        call = self.send(index, method, *arguments, raises=True, collected=False)
        self._finish([call])
        if call.lost:
            raise self.failures.last[index]
        return call.value


class RemoteSubEnvironment:
    """Stands for an environment in another process: its attributes are read and its methods called there."""

    def __init__(self, envs: RemoteEnvs, index: int) -> None:
        self._envs = envs
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        is_method, value = self._envs.ask(self._index, "look_up", name)
        if not is_method:
            return value
        return lambda *arguments, **keywords: self._envs.ask(self._index, "call", name, arguments, keywords)


def ray_envs(copies: EnvCopies) -> RayActors:
    """The actors of remote sub-environments; `ConfigError` if the environment or its creator cannot be pickled."""
    ray = started_ray("remote_worker_envs")
    # The processes are small and mostly wait: Ray is to start them all, however few cores there are.
    host = ray.remote(num_cpus=0)(EnvHost)
    existing, others = next(iter(copies.existing), None), replace(copies, existing=())
    parts = {"make_env": others.make_one, "existing": existing, "declared": copies.declared}
    arguments = stored(ray, parts, "remote_worker_envs")
    registered = ray.put(registrations(ray.cloudpickle.dumps))

    def start(index: int, restarts: int) -> Any:
        first = index == 0 and not restarts
        return host.remote(index, **{**arguments, **({} if first else {"existing": None})}, registered=registered)

    return RayActors(ray, start)
