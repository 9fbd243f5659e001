"""Remote sub-environments as a `BaseEnv`: stepped in parallel, each in its own process."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollax.core import trees
from rollax.core.cleanup import cleanup_on_error
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, check_spaces
from rollax.env.multi_agent.multi_agent_base_env import AgentActions, MultiAgentRows
from rollax.env.registrations import registrations
from rollax.env.remote.env_host import EnvFacts, EnvHost
from rollax.env.restarting import EnvFailures
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.env.vector.vector_base_env import SingleAgentRows
from rollax.processes.actor_pool import ActorPool, Call
from rollax.processes.actors import Actors
from rollax.processes.cluster import check_processes_fit, started_ray
from rollax.processes.ray_actors import RayActors, stored
from rollax.processes.stacks import StackFolder, writing_stacks

_START_S = 60.0  # added to the time limit, for a new process and its environment


_LOCKSTEP_MS = 10_000.0
"""A wait for other sub-environments of at least this time counts as a wait for all of them."""


class RemoteBaseEnv(BaseEnv):
    """Copies of a single-agent or multi-agent environment, each in its own process.

    A poll waits until a sub-environment is ready, and then at most `batch_wait_ms` for the others. With 0, it returns
    only the sub-environments that are ready; with a large number, all step in lockstep. Sub-environments that are not
    ready in time appear in a later poll.

    A sub-environment whose process ends, or takes longer than `timeout_s`, is recreated, and its episode dropped. A
    sub-environment that raises is recreated too if the copies have `restart_failed`; otherwise its error is raised.

    Raises:
        ConfigError: Ray is not installed, or the creator cannot be pickled.
        EnvError, SpaceError: a sub-environment that cannot be made, or sub-environments with different spaces.
    """

    adapts = True

    def __init__(
        self,
        copies: EnvCopies,
        *,
        batch_wait_ms: float = 0.0,
        timeout_s: float | None = None,
        ray_address: str | None = None,
    ) -> None:
        self._failures = EnvFailures(restart_failed=copies.restart_failed, timeout_s=timeout_s)
        self.num_envs = copies.num_envs
        actors = ray_envs(copies, self._failures.rules.timeout_s, ray_address)
        self._envs = RemoteEnvs(actors, self.num_envs, self._failures)
        facts = self._envs.facts
        self.name = facts.name
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.observation_spaces, self.action_spaces = facts.observation_spaces, facts.action_spaces
        self.possible_agents = facts.possible_agents
        spaces = (self.observation_space, self.possible_agents, self.observation_spaces)
        self._rows: MultiAgentRows | _SingleAgentRows = (
            MultiAgentRows(self.name, self.num_envs, *spaces)
            if facts.several_agents
            else _SingleAgentRows(self.name, self.observation_space, self.num_envs)
        )
        self._wait_s = batch_wait_ms / 1000
        self.repeats = batch_wait_ms >= _LOCKSTEP_MS or self.num_envs == 1
        self._calls: dict[int, Call] = {}  # the step or reset of each sub-environment, until a poll takes it
        self._seeds: list[int | None] = [None] * self.num_envs  # of the pending reset
        self._resting: set[int] = set()
        self._actions = AgentActions(self.name, self.num_envs, self._rows.acting)

    def poll_rows(self) -> Rows:
        steps, resets, dropped = {}, {}, []
        for index in range(self.num_envs):
            if index in self._calls or index in self._resting:
                continue
            if self._actions.is_running(index) and index in self._failures.recreated:
                dropped.append(index)  # the sub-environment failed in a call that was not a step
            else:
                actions = self._actions.take(index)
                action = actions[DEFAULT_AGENT] if isinstance(self._rows, _SingleAgentRows) else actions
                self._calls[index] = self._envs.send(index, "step", action)
        while not (steps or resets or dropped):
            for call in self._taken(self._calls.keys(), float("inf"), self._wait_s):
                if not call.lost:
                    (steps if call.method == "step" else resets)[call.index] = call.value
                elif call.method == "step":
                    dropped.append(call.index)
                else:
                    self._send_reset(call.index)
        rows = self._rows.of_steps(steps)
        ended = rows.ended_envs.tolist()
        self._failures.stepped(steps, ended)
        if resets:
            started = self._rows.of_resets(resets)
            rows = Rows.concat(rows, started) if len(rows) or len(rows.ended_envs) else started
        rows.dropped_envs = np.array(dropped, np.int64)
        self._actions.expect((*steps, *resets), over=(*ended, *dropped))
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._actions.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        indices = env_index.tolist()
        self._resting -= set(indices)
        self._actions.expect((), over=indices)
        for position, index in enumerate(indices):
            self._seeds[index] = None if seeds is None else seeds[position]
            self._send_reset(index)
        results: dict[int, Any] = {}
        until = time.monotonic() + self._wait_s
        while (missing := set(indices) - results.keys()) and (left := until - time.monotonic()) > 0:
            for call in self._taken(missing, left):
                if call.lost:
                    self._send_reset(call.index)
                else:
                    results[call.index] = call.value
        if not results:
            return None
        rows = self._rows.of_resets({index: results[index] for index in indices if index in results})
        self._actions.expect(results)
        return rows

    def rest_rows(self, env_index: np.ndarray) -> bool:
        self._resting |= set(env_index.tolist())
        for index in self._resting:
            self._calls.pop(index, None)  # of a dropped episode
        return True

    def _taken(self, indices: Iterable[int], first_s: float, others_s: float = 0.0) -> list[Call]:
        """The completed calls of these sub-environments, by index; see `ActorPool.ready` for the timeouts."""
        indices = sorted(indices)
        over = any(self._calls[index].over for index in indices)
        self._envs.ready(0.0 if over else first_s, others_s)
        return [self._calls.pop(index) for index in indices if self._calls[index].over]

    def _send_reset(self, index: int) -> None:
        seed = self._failures.seed(index, self._seeds[index])
        self._calls[index] = self._envs.send(index, "reset", seed)

    def get_sub_environments(self) -> list[Any]:
        """Proxies: attributes are read and set, and methods called, in the sub-environment's process."""
        return [RemoteSubEnvironment(self._envs, index) for index in range(self.num_envs)]

    def try_render(self, env_id: int | None = None) -> Any:
        return self._envs.result_of(env_id or 0, "render")

    def stop(self) -> None:
        self._envs.stop()


class _SingleAgentRows(SingleAgentRows):
    """Rows from results of single-agent environments, by sub-environment, as `MultiAgentRows`."""

    def acting(self, index: int) -> list[Hashable]:
        return [DEFAULT_AGENT]

    def of_resets(self, results: Mapping[int, Any]) -> Rows:
        where = f"{self.name}, sub-environment "
        pairs = [checks.check_reset(result, f"{where}{i}, reset()") for i, result in results.items()]
        obs, infos = zip(*pairs, strict=True)
        return self.started(np.array(list(results), np.int64), list(obs), infos)

    def of_steps(self, results: Mapping[int, Any]) -> Rows:
        for i, result in results.items():
            checks.check_step(result, f"{self.name}, sub-environment {i}")
        obs, *outcomes = zip(*results.values(), strict=True) if results else ((),) * 5
        return self.stepped(np.array(list(results), np.int64), list(obs), *outcomes)


class RemoteEnvs(ActorPool):
    """One actor with an `EnvHost` per sub-environment, by index from 0; `facts` are the same for all.

    A sub-environment that raises is recreated in its process; if the process ends or hangs, in a new one.
    """

    def __init__(self, actors: Actors, num_envs: int, failures: EnvFailures) -> None:
        super().__init__(actors, range(num_envs), failures, makes=True, remakes=True, stop="close")
        made: dict[int, EnvFacts] = self.make_all()
        self.facts = made[0]
        with cleanup_on_error(self.stop):
            for index, facts in made.items():
                where = f"{facts.name}, sub-environment {index}"
                check_spaces(facts, self.facts, where, may_lack_spaces=facts.several_agents)
        self.make_arguments = (self.facts,)
        # At first there is no limit, because many processes take long to start.
        failures.rules = replace(failures.rules, start_timeout_s=failures.rules.timeout_s + _START_S)

    def result_of(self, index: int, method: str, *arguments: Any) -> Any:
        """The result of one call of a method of an `EnvHost`; `EnvError` or `WorkerError` if the call fails."""
        call = self.send(index, method, *arguments, raises=True, collected=False)
        self._finish([call])
        if call.lost:
            raise self.failures.last[index]
        return call.value


class RemoteSubEnvironment:
    """Proxy of an environment in another process: attributes are read and set, and methods called, in that process.

    An attribute that is an environment, such as `unwrapped`, is a proxy too; `path` leads to it, as in "unwrapped.".
    """

    def __init__(self, envs: RemoteEnvs, index: int, path: str = "") -> None:
        self.__dict__["__proxied__"] = envs, index, path  # a name that no environment has

    def __setattr__(self, name: str, value: Any) -> None:
        envs, index, path = self.__proxied__
        envs.result_of(index, "assign", path + name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of Python's protocols, such as copying
            raise AttributeError(name)
        envs, index, path = self.__proxied__
        kind, value = envs.result_of(index, "look_up", path + name)
        if kind == "env":
            return RemoteSubEnvironment(envs, index, f"{path}{name}.")
        if kind == "value":
            return value
        return lambda *arguments, **keywords: envs.result_of(index, "call", path + name, arguments, keywords)


def ray_envs(copies: EnvCopies, timeout_s: float, ray_address: str | None = None) -> RayActors:
    """The actors of remote sub-environments, with the time limit of their calls, in the cluster of `started_ray`.

    Raises:
        ConfigError: the environment or its creator cannot be pickled.
    """
    ray = started_ray("remote_worker_envs", ray_address)
    key = "config keys 'num_envs_per_worker' and 'remote_worker_envs'"
    check_processes_fit(ray, copies.num_envs, key, "lower num_envs_per_worker")
    # The processes are small and mostly wait, so Ray may start them all on a few cores.
    host, folder = ray.remote(num_cpus=0)(writing_stacks(EnvHost)), StackFolder()
    existing, others = next(iter(copies.existing), None), replace(copies, existing=())
    parts = {"make_env": others.make_one, "existing": existing, "declared": copies.declared}
    arguments = stored(ray, parts, "remote_worker_envs")
    registered = ray.put(registrations(ray.cloudpickle.dumps))

    def start(index: int, restarts: int) -> Any:
        first = index == 0 and not restarts
        given = {**arguments, **({} if first else {"existing": None}), "registered": registered}
        return host.remote(index, **given, stacks=folder.file(index, timeout_s, timeout_s + _START_S))

    return RayActors(ray, start, stacks=folder)
