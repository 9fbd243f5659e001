"""Failed sub-environments are recreated after a pause, until one fails too many times in a row."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from rollax.env import checks
from rollax.env.copies import EnvCopies, Resets, check_spaces
from rollax.errors import EnvError, RollaxError, WorkerError, text_of
from rollax.processes.failure_rules import FailureRules, Failures


class EnvFailures(Failures):
    """Counts the failures of each sub-environment, and raises an error if one fails too many times in a row.

    Failures are in a row if no episode has ended and fewer than a thousand steps were taken between them, as in an
    environment that always fails at its tenth step.

    Args:
        restart_failed: recreate sub-environments that raise. Sub-environments whose process ends or hangs are always
            recreated.
        timeout_s: time limit of a step or reset in another process; None for no limit.
    """

    MOST_IN_A_ROW = 5
    FIRST_PAUSE_S = 0.1
    STEPS_TO_GET_WELL = 1000
    ATTEMPTS_PER_SEED = 3

    def __init__(self, *, restart_failed: bool, timeout_s: float | None = None) -> None:
        rules = FailureRules(
            restart=True,
            max_restarts=2**62,
            tolerance=self.MOST_IN_A_ROW,
            delay_s=self.FIRST_PAUSE_S,
            timeout_s=float("inf") if timeout_s is None else timeout_s,
            start_timeout_s=float("inf"),
        )
        advice = "look for an endless loop in the environment; if it is only slow, raise remote_env_timeout_s"
        super().__init__(rules, "sub-environment", advice)
        self._restart_failed = restart_failed
        self.recreated: set[int] = set()
        """Sub-environments that have failed since their last reset."""
        self._steps: dict[int, int] = {}
        self._seeds: dict[int, int] = {}
        self._attempts: dict[int, int] = {}
        self._restarts_of: dict[int, int] = {}

    def failed(self, index: int, error: Exception) -> float:
        """Counts a failure; returns the seconds to wait before the sub-environment is recreated, or raises an error."""
        if not isinstance(error, RollaxError):  # the result cannot be pickled
            raised = checks.failed(error, "a call", f"sub-environment {index}")
            raised.__cause__, error = error, raised
        if not (self._restart_failed or isinstance(error, WorkerError)):
            raise error
        self.recreated.add(index)
        self._steps[index] = 0
        self._restarts_of[index] = self._restarts_of.get(index, 0) + 1
        delay_s = super().failed(index, error)
        if delay_s is None:
            raise EnvError(
                f"A sub-environment failed {self.in_a_row[index]} times in a row.",
                f"sub-environment {index}",
                text_of(error).partition("\n")[0],
            ).expected(
                f"the end of an episode, or {self.STEPS_TO_GET_WELL} steps, between failures",
                "correct the environment: the last failure is the traceback above",
            ) from error
        return delay_s

    def stepped(self, indices: Iterable[int], ended: Iterable[int]) -> None:
        """Counts a step of these sub-environments, and resets the counts of sub-environments whose episode ended."""
        if not self.in_a_row:
            return
        for index in set(indices) & self.in_a_row.keys():
            self._steps[index] += 1
            if self._steps[index] >= self.STEPS_TO_GET_WELL:
                del self.in_a_row[index]
        for index in ended:
            self.in_a_row.pop(index, None)

    def seed(self, index: int, seed: int | None) -> int | None:
        """The seed of a reset: `seed` itself, or a seed computed from it after `ATTEMPTS_PER_SEED` failed attempts.

        A seed that fails so often may cause the failures. If `seed` is None, the result is None, except for a recreated
        sub-environment that has had a seed: then the result is computed from its last seed.
        """
        recreated = index in self.recreated
        self.recreated.discard(index)
        if seed is not None:
            again = recreated and seed == self._seeds.get(index)
            self._attempts[index] = self._attempts[index] + 1 if again else 1
            self._seeds[index] = seed
            if self._attempts[index] <= self.ATTEMPTS_PER_SEED:
                return seed
            source = (seed, self._attempts[index])
        elif recreated and index in self._seeds:
            source = (self._seeds[index], self._restarts_of[index])
        else:
            return None
        return int(np.random.SeedSequence(source).generate_state(1)[0]) >> 1


class Restarts(Resets):
    """Resets the copies, and first replaces failed copies in the list."""

    def __init__(self, copies: EnvCopies, envs: list[Any]) -> None:
        super().__init__(envs)
        self._copies = copies
        self._broken: set[int] = set()
        self._failures = EnvFailures(restart_failed=True)

    def stepped(self, indices: Iterable[int], ended: Iterable[int]) -> None:
        self._failures.stepped(indices, ended)

    def failed(self, index: int, error: EnvError, cause: Exception) -> None:
        if isinstance(cause, RollaxError):
            raise cause
        self._count(index, error, cause)

    def _count(self, index: int, error: EnvError, cause: Exception) -> None:
        """Counts a failure and waits, or raises the error if there were too many."""
        error.__cause__ = cause
        time.sleep(self._failures.failed(index, error))
        self._broken.add(index)

    def reset(self, index: int, where: str, seed: int | None, **keywords: Any) -> Any:
        while True:
            try:
                if index in self._broken:
                    self._recreate(index, where)
            except Exception as error:  # an error of the creator, of any class: the next attempt may succeed
                self._count(index, checks.failed(error, "its creator", where), error)
                continue
            try:
                return self._envs[index].reset(seed=self._failures.seed(index, seed), **keywords)
            except Exception as error:
                self.failed(index, checks.failed(error, "reset()", where), error)

    def _recreate(self, index: int, where: str) -> None:
        envs, failed = self._envs, self._envs[index]
        with contextlib.suppress(Exception):  # this environment has failed, and the failure is logged
            failed.close()
        env = self._copies.make_one(index)
        first = next((other for other in envs if other is not failed), failed)
        check_spaces(env, first, where, may_lack_spaces=True, declared=self._copies.declared)
        envs[index] = env
        self._broken.discard(index)
