"""Remote sub-environments as a `BaseEnv`: stepped in parallel, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from rollax import trees
from rollax.env.base_env import BaseEnv, action_values
from rollax.env.copies import NO_SPACES, Spaces
from rollax.env.remote.env_host import Failure
from rollax.env.remote.remote_env import EnvActors, RemoteSubEnvironment, error_of
from rollax.env.remote.remote_rows import ManyAgents, OneAgentEach
from rollax.env.restarting import Failures
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.errors import EnvError


class RemoteBaseEnv(BaseEnv):
    """Copies of one environment of one or of many agents.

    A poll waits until one of them is ready, and then no longer than `batch_wait_ms` for the others: 0 takes what is
    ready, a large number steps all in lockstep. What cannot be waited for comes with a later poll.

    A sub-environment whose process is lost is made anew, and its episode dropped. So is one that raises, if
    `restart_failed` says so; else its error is raised here.

    Args:
        make_env: makes the sub-environment of a vector index, in its process.
        num_envs: how many.
        existing: stands for the first one; it travels to its process.
        batch_wait_ms: how long a poll waits for others once one is ready.
        timeout_s: a step or reset that takes longer has hung, and its process is lost; None for no limit.
        restart_failed: make those anew that raise.
        declared: the spaces of the config.
    Raises:
        ConfigError: Ray is not installed, or the creator cannot travel.
        EnvError, SpaceError: a sub-environment that cannot be made, or is not like the others.
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
        self._actors = EnvActors(make_env, num_envs, existing=existing, declared=declared, timeout_s=timeout_s)
        facts = self._actors.facts
        self.num_envs = num_envs
        self.name = facts.name
        self.observation_space, self.action_space = facts.observation_space, facts.action_space
        self.observation_spaces, self.action_spaces = facts.observation_spaces, facts.action_spaces
        self.possible_agents = facts.possible_agents
        self._several_agents = facts.several_agents
        self._rows = (ManyAgents if facts.several_agents else OneAgentEach)(facts, num_envs)
        self._wait_s = batch_wait_ms / 1000
        self._restart_failed = restart_failed
        self._failures = Failures()
        self._renewed: set[int] = set()  # those that have not been reset since they were made anew
        self._seeds: list[int | None] = [None] * num_envs  # given for the reset under way
        self._running = [False] * num_envs
        self._waiting: list[set[Hashable]] = [set() for _ in range(num_envs)]
        self._answers: list[dict[Hashable, Any]] = [{} for _ in range(num_envs)]

    def poll_rows(self) -> Rows:
        for index in range(self.num_envs):
            if not self._actors.is_busy(index):
                self._actors.send(index, "step", self._answer(index))
        steps, resets, dropped = {}, {}, []
        while not (steps or resets or dropped):
            for index, (call, outcome) in self._actors.collect(others_s=self._wait_s).items():
                if not isinstance(outcome, Failure):
                    (steps if call.method == "step" else resets)[index] = outcome
                elif self._recovered(index, outcome, call.method):
                    dropped.append(index)
        rows = self._rows.outcome(steps)
        self._failures.stepped(steps, rows.ended_envs.tolist())
        for index in (*rows.ended_envs.tolist(), *dropped):
            self._running[index] = False
        if resets:
            started = self._begun(resets)
            rows = Rows.concat(rows, started) if len(rows) else started
        rows.dropped_envs = np.array(dropped, np.int64)
        self._note_waiting(rows)
        return rows

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        chosen = range(len(rows)) if selection is None else selection.tolist()
        for row, action in zip(chosen, action_values(actions), strict=True):
            index, agent = int(rows.env_index[row]), rows.agent_of(row)
            if agent not in self._waiting[index] or agent in self._answers[index]:
                raise EnvError(
                    "An action for an agent that is not waiting for one.",
                    where=f"{self.name}, sub-environment {index}, agent {agent!r}",
                    got=action,
                    expected=f"one action for each of {sorted(map(str, self._waiting[index]))}",
                    fix="answer each row that acts once",
                )
            self._answers[index][agent] = action

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        indices = env_index.tolist()
        for position, index in enumerate(indices):
            self._running[index], self._waiting[index], self._answers[index] = False, set(), {}
            self._seeds[index] = None if seeds is None else seeds[position]
            self._send_reset(index)
        results: dict[int, Any] = {}
        until = time.monotonic() + self._wait_s
        while (missing := set(indices) - results.keys()) and (left := until - time.monotonic()) > 0:
            for index, (call, outcome) in self._actors.collect(missing, first_s=left).items():
                if isinstance(outcome, Failure):
                    self._recovered(index, outcome, call.method)
                else:
                    results[index] = outcome
        if not results:
            return None
        rows = self._begun({index: results[index] for index in indices if index in results})
        self._note_waiting(rows)
        return rows

    def _answer(self, index: int) -> Any:
        """What a sub-environment's next step is called with."""
        missing = self._waiting[index] - self._answers[index].keys()
        if missing or not self._running[index]:
            raise EnvError(
                "A step without an action for everybody who waits for one.",
                where=f"{self.name}, sub-environment {index}",
                got=f"no action for {sorted(map(str, missing))}" if missing else "an episode that is over or not begun",
                expected="a reset first, then an action for each row that acts before the next poll",
                fix="send the actions" if missing else "call reset_rows or try_reset after an episode's end",
            )
        answers, self._answers[index], self._waiting[index] = self._answers[index], {}, set()
        return answers if self._several_agents else answers[DEFAULT_AGENT]

    def _recovered(self, index: int, failure: Failure, method: str) -> bool:
        """Has a failed sub-environment made anew; true where an episode was lost.

        Raises:
            EnvError: it is not to be made anew, or has failed too often.
        """
        error: Any = error_of(failure)
        if not (failure.process_lost or self._restart_failed):
            raise error
        pause_s = self._failures.count(index, error)
        self._actors.restart(index, pause_s=pause_s, new_process=failure.process_lost)
        self._renewed.add(index)
        if method == "step":
            return True
        self._send_reset(index)
        return False

    def _send_reset(self, index: int) -> None:
        seed = self._failures.seed(index, self._seeds[index], renewed=index in self._renewed)
        self._renewed.discard(index)
        self._actors.send(index, "reset", seed)

    def _begun(self, resets: dict[int, Any]) -> Rows:
        for index in resets:
            self._running[index] = True
        return self._rows.beginning(resets)

    def _note_waiting(self, rows: Rows) -> None:
        for row in np.flatnonzero(rows.acts).tolist():
            self._waiting[rows.env_index[row]].add(rows.agent_of(row))

    def get_sub_environments(self) -> list[Any]:
        """Stand-ins: reading an attribute or calling a method of one does so in its process."""
        return [RemoteSubEnvironment(self._actors, index) for index in range(self.num_envs)]

    def try_render(self, env_id: int | None = None) -> Any:
        return self._actors.ask(env_id or 0, "render")

    def stop(self) -> None:
        self._actors.stop()
