"""Remote sub-environments as a `BaseEnv`: stepped in parallel, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env.agent_actions import AgentActions
from rollax.env.base_env import BaseEnv
from rollax.env.copies import NO_SPACES, Spaces
from rollax.env.remote.remote_envs import RemoteEnvs, RemoteSubEnvironment, ray_envs
from rollax.env.remote.remote_rows import ManyAgents, OneAgentEach
from rollax.env.restarting import EnvFailures
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.processes.pool import Call


class RemoteBaseEnv(BaseEnv):
    """Copies of one environment of one or of many agents.

    A poll waits until one of them is ready, and then no longer than `batch_wait_ms` for the others: 0 takes what is
    ready, a large number steps all in lockstep. Those that are not ready come with a later poll.

    A sub-environment whose process ends or hangs is recreated, and its episode dropped. So is one that raises, if
    `restart_failed` is true; otherwise its error is raised here.

    Args:
        make_env: makes the sub-environment of a vector index, in its process.
        num_envs: how many.
        existing: stands for the first one; it travels to its process.
        batch_wait_ms: how long a poll waits for others once one is ready.
        timeout_s: a step or reset that takes longer has hung, and its process is ended; None for no limit.
        restart_failed: recreate sub-environments that raise.
        declared: the spaces of the config.
    Raises:
        ConfigError: Ray is not installed, or the creator cannot be pickled.
        EnvError, SpaceError: a sub-environment that cannot be made, or whose spaces differ from the others'.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        *,
        existing: Any = None,
        batch_wait_ms: float = 0.0,
        timeout_s: float | None = None,
        restart_failed: bool = False,
        declared: Spaces = NO_SPACES,
    ) -> None:
        self._failures = EnvFailures(restart_failed=restart_failed, timeout_s=timeout_s)
        self._envs = RemoteEnvs(ray_envs(make_env, existing, declared), num_envs, self._failures)
        facts = self._envs.facts
        self.num_envs = num_envs
        self.name = facts.name
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.observation_spaces, self.action_spaces = facts.observation_spaces, facts.action_spaces
        self.possible_agents = facts.possible_agents
        self._several_agents = facts.several_agents
        self._rows = (ManyAgents if facts.several_agents else OneAgentEach)(facts, num_envs)
        self._wait_s = batch_wait_ms / 1000
        self._calls: dict[int, Call] = {}  # the step or reset of each sub-environment, until a poll takes it
        self._seeds: list[int | None] = [None] * num_envs  # of the reset under way
        self._actions = AgentActions(facts.name, num_envs)

    def poll_rows(self) -> Rows:
        steps, resets, dropped = {}, {}, []
        for index in range(self.num_envs):
            if index in self._calls:
                continue
            if self._actions.is_running(index) and index in self._failures.recreated:
                dropped.append(index)  # it failed in another call than a step
            else:
                self._calls[index] = self._envs.send(index, "step", self._action(index))
        while not (steps or resets or dropped):
            for call in self._taken(self._calls.keys(), float("inf"), self._wait_s):
                if not call.lost:
                    (steps if call.method == "step" else resets)[call.index] = call.value
                elif call.method == "step":
                    dropped.append(call.index)
                else:
                    self._send_reset(call.index)
        rows = self._rows.outcome(steps)
        self._failures.stepped(steps, rows.ended_envs.tolist())
        for index in (*rows.ended_envs.tolist(), *dropped):
            self._actions.end(index)
        if resets:
            started = self._begun(resets)
            rows = Rows.concat(rows, started) if len(rows) else started
        rows.dropped_envs = np.array(dropped, np.int64)
        self._note_waiting(rows)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._actions.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        indices = env_index.tolist()
        for position, index in enumerate(indices):
            self._actions.end(index)
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
        rows = self._begun({index: results[index] for index in indices if index in results})
        self._note_waiting(rows)
        return rows

    def _action(self, index: int) -> Any:
        """The argument of a sub-environment's next step."""
        actions = self._actions.take(index)
        return actions if self._several_agents else actions[DEFAULT_AGENT]

    def _taken(self, indices: Iterable[int], first_s: float, others_s: float = 0.0) -> list[Call]:
        """The calls of these sub-environments that are over, by index; see `ActorPool.ready` for the times to wait."""
        indices = sorted(indices)
        over = any(self._calls[index].over for index in indices)
        self._envs.ready(0.0 if over else first_s, others_s)
        return [self._calls.pop(index) for index in indices if self._calls[index].over]

    def _send_reset(self, index: int) -> None:
        seed = self._failures.seed(index, self._seeds[index])
        self._calls[index] = self._envs.send(index, "reset", seed)

    def _begun(self, resets: dict[int, Any]) -> Rows:
        for index in resets:
            self._actions.begin(index)
        return self._rows.beginning(resets)

    def _note_waiting(self, rows: Rows) -> None:
        for row in np.flatnonzero(rows.acts).tolist():
            self._actions.request(rows.env_index[row], [rows.agent_of(row)])

    def get_sub_environments(self) -> list[Any]:
        """Stand-ins: reading an attribute or calling a method of one does so in its process."""
        return [RemoteSubEnvironment(self._envs, index) for index in range(self.num_envs)]

    def try_render(self, env_id: int | None = None) -> Any:
        return self._envs.ask(env_id or 0, "render")

    def stop(self) -> None:
        self._envs.stop()
