"""Sub-environments that fail are recreated, with pauses, until one fails too often in a row."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from rollax.env import checks
from rollax.env.copies import NO_SPACES, EnvCopies, Spaces, check_spaces, no_more
from rollax.errors import EnvError, RollaxError, WorkerError
from rollax.processes.failures import FailureRules, Failures


class EnvFailures(Failures):
    """Counts the failures of each sub-environment, and raises an error where one fails again and again.

    A failure counts as one in a row with the last as long as no episode has ended and no thousand steps were taken in
    between: an environment that always fails at its tenth step does not recover.

    Args:
        restart_failed: recreate sub-environments that raise; one whose process ends or hangs always is.
        timeout_s: time limit of a step or reset in another process; None for none.
    Attributes:
        recreated: sub-environments that have failed since their last reset.
    """

    MOST_IN_A_ROW = 5
    FIRST_PAUSE_S = 0.1
    STEPS_TO_GET_WELL = 1000

    def __init__(self, *, restart_failed: bool, timeout_s: float | None = None) -> None:
        limit_s = float("inf") if timeout_s is None else timeout_s
        rules = FailureRules(
            restart=True,
            max_restarts=2**62,
            tolerance=self.MOST_IN_A_ROW,
            delay_s=self.FIRST_PAUSE_S,
            timeout_s=limit_s,
            start_timeout_s=float("inf"),
        )
        advice = "look for an endless loop in the environment; if it is only slow, raise remote_env_timeout_s"
        super().__init__(rules, "sub-environment", advice)
        self._restart_failed = restart_failed
        self.recreated: set[int] = set()
        self._steps: dict[int, int] = {}
        self._seeds: dict[int, int] = {}
        self._restarts_of: dict[int, int] = {}

    def failed(self, index: int, error: Exception) -> float:
        """Counts a failure; returns the seconds to wait before the sub-environment is recreated.

        Raises:
            EnvError: it is not to be recreated, or has failed too often in a row.
        """
        if not isinstance(error, RollaxError):  # its result cannot be pickled
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
                where=f"sub-environment {index}",
                got=str(error).partition("\n")[0],
                expected=f"an episode's end, or {self.STEPS_TO_GET_WELL} steps, between failures",
                fix="correct the environment: the last failure is the traceback above",
            ) from error
        return delay_s

    def stepped(self, indices: Iterable[int], ended: Iterable[int]) -> None:
        """Counts a step of these sub-environments; some of them ended their episode with it."""
        if not self.in_a_row:
            return
        for index in set(indices) & self.in_a_row.keys():
            self._steps[index] += 1
            if self._steps[index] >= self.STEPS_TO_GET_WELL:
                del self.in_a_row[index]
        for index in ended:
            self.in_a_row.pop(index, None)

    def seed(self, index: int, seed: int | None) -> int | None:
        """The seed of a reset: the given one, or the next of its stream where the sub-environment is recreated."""
        recreated = index in self.recreated
        self.recreated.discard(index)
        if seed is not None:
            self._seeds[index] = seed
        elif recreated and index in self._seeds:
            source = (self._seeds[index], self._restarts_of[index])
            return int(np.random.SeedSequence(source).generate_state(1)[0]) >> 1
        return seed


class Restarts:
    """Resets copies of one environment in this process, and recreates those first that have failed.

    Args:
        make_env: makes the sub-environment of a vector index; None where failures are raised.
        declared: the spaces of the config.
    """

    def __init__(self, make_env: Callable[[int], Any] | None = None, declared: Spaces = NO_SPACES) -> None:
        self._make_env = make_env
        self._declared = declared
        self._broken: set[int] = set()
        self.failures = EnvFailures(restart_failed=make_env is not None)

    @classmethod
    def of(cls, copies: EnvCopies) -> Self:
        """The restarts of copies, if the config requests them."""
        return cls(copies.make_env or no_more, copies.declared) if copies.restart_failed else cls()

    def failed(self, index: int, error: EnvError, cause: Exception) -> None:
        """Counts a failure and waits, if the sub-environment is to be recreated.

        Args:
            index: the sub-environment.
            error: the error to raise, or to log.
            cause: what a call of it raised.
        Raises:
            EnvError: `error`, or that there were too many failures in a row.
            RollaxError: `cause`, where an adapter refused what the environment returned: it would return it again.
        """
        if isinstance(cause, RollaxError):
            raise cause
        self._count(index, error, cause)

    def _count(self, index: int, error: EnvError, cause: Exception) -> None:
        error.__cause__ = cause
        time.sleep(self.failures.failed(index, error))
        self._broken.add(index)

    def reset(
        self, envs: list[Any], index: int, where: str, seed: int | None, reset: Callable[[Any, int | None], Any]
    ) -> Any:
        """What `reset` returns for a sub-environment and a seed.

        Args:
            envs: the sub-environments; one that has failed is replaced.
            index: which one.
            where: what error messages call it.
            seed: given by the sampler.
            reset: `(env, seed) -> result`.
        Raises:
            EnvError: it cannot be reset.
        """
        while True:
            try:
                if index in self._broken:
                    envs[index] = self._recreated(envs, index, where)
            except Exception as error:  # the creator's own, of any class: the next try may succeed
                self._count(index, checks.failed(error, "its creator", where), error)
                continue
            try:
                return reset(envs[index], self.failures.seed(index, seed))
            except Exception as error:
                self.failed(index, checks.failed(error, "reset()", where), error)

    def _recreated(self, envs: Sequence[Any], index: int, where: str) -> Any:
        assert self._make_env is not None
        with contextlib.suppress(Exception):  # it is broken, and its failure is logged
            envs[index].close()
        env = self._make_env(index)
        first = next((other for other in envs if other is not envs[index]), envs[index])
        check_spaces(env, first, where, may_lack_spaces=True, declared=self._declared)
        self._broken.discard(index)
        return env
