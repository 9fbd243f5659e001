"""Sub-environments that fail are made anew: with pauses, and not forever."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rollax.env import checks
from rollax.env.copies import NO_SPACES, Spaces, check_spaces
from rollax.errors import EnvError, RollaxError


class Failures:
    """Counts the failures of each sub-environment, and gives up where one fails again and again.

    A failure counts as one in a row with the last as long as no episode has ended and no thousand steps were taken in
    between: an environment that always fails at its tenth step never gets well.
    """

    MOST_IN_A_ROW = 5
    FIRST_PAUSE_S = 0.1
    STEPS_TO_GET_WELL = 1000

    def __init__(self) -> None:
        self.in_a_row: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._seeds: dict[int, int] = {}
        self._restarts: dict[int, int] = {}

    def count(self, index: int, error: EnvError) -> float:
        """Books one failure and says so in the log.

        Args:
            index: the sub-environment.
            error: what happened, with its cause.
        Returns:
            Seconds to wait before it is made anew: none after a first failure, then ever more.
        Raises:
            EnvError: that was one too many.
        """
        failures = self.in_a_row.get(index, 0) + 1
        self.in_a_row[index], self._steps[index] = failures, 0
        self._restarts[index] = self._restarts.get(index, 0) + 1
        if failures > self.MOST_IN_A_ROW:
            raise EnvError(
                f"A sub-environment failed {failures} times in a row.",
                where=f"sub-environment {index}",
                got=str(error).partition("\n")[0],
                expected=f"an episode's end, or {self.STEPS_TO_GET_WELL} steps, between failures",
                fix="correct the environment: the last failure is the traceback above",
            ) from error
        pause = 0.0 if failures == 1 else self.FIRST_PAUSE_S * 2 ** (failures - 2)
        checks.log.warning(
            "Sub-environment %d failed; it is made anew and its episode dropped (failure %d of at most %d in a row).",
            *(index, failures, self.MOST_IN_A_ROW),
            exc_info=error,
        )
        return pause

    def stepped(self, indices: Iterable[int], ended: Iterable[int]) -> None:
        """These sub-environments took a step, with which some of them ended their episode."""
        if not self.in_a_row:
            return
        for index in set(indices) & self.in_a_row.keys():
            self._steps[index] += 1
            if self._steps[index] >= self.STEPS_TO_GET_WELL:
                del self.in_a_row[index]
        for index in ended:
            self.in_a_row.pop(index, None)

    def seed(self, index: int, seed: int | None, *, renewed: bool) -> int | None:
        """The seed of a reset: the one that was given, or the next of its stream where the sub-environment is new."""
        if seed is not None:
            self._seeds[index] = seed
        elif renewed and index in self._seeds:
            source = (self._seeds[index], self._restarts[index])
            return int(np.random.SeedSequence(source).generate_state(1)[0]) >> 1
        return seed


class Restarts:
    """Resets copies of one environment in this process, and makes those anew first that have failed.

    Args:
        make_env: makes the sub-environment of a vector index; None where failures are raised.
        declared: the spaces of the config.
    """

    def __init__(self, make_env: Callable[[int], Any] | None = None, declared: Spaces = NO_SPACES) -> None:
        self._make_env = make_env
        self._declared = declared
        self._broken: set[int] = set()
        self.failures = Failures()

    def failed(self, index: int, error: EnvError, cause: Exception) -> None:
        """A call of a sub-environment raised `cause`, which `error` tells of.

        Raises:
            EnvError: `error`, or that it was one failure too many.
            RollaxError: `cause`, where an adapter refused what the environment returned: it would return it again.
        """
        if isinstance(cause, RollaxError):
            raise cause
        self._count(index, error, cause)

    def _count(self, index: int, error: EnvError, cause: Exception) -> None:
        error.__cause__ = cause
        if self._make_env is None:
            raise error
        time.sleep(self.failures.count(index, error))
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
            renewed = index in self._broken
            try:
                if renewed:
                    envs[index] = self._made_anew(envs, index, where)
            except Exception as error:  # the creator's own, whatever they are: the next try may go well
                self._count(index, checks.failed(error, "its creator", where), error)
                continue
            try:
                return reset(envs[index], self.failures.seed(index, seed, renewed=renewed))
            except Exception as error:
                self.failed(index, checks.failed(error, "reset()", where), error)

    def _made_anew(self, envs: Sequence[Any], index: int, where: str) -> Any:
        assert self._make_env is not None
        with contextlib.suppress(Exception):  # it is broken; what counts has been logged
            envs[index].close()
        env = self._make_env(index)
        first = next((other for other in envs if other is not envs[index]), envs[index])
        check_spaces(env, first, where, may_lack_spaces=True, declared=self._declared)
        self._broken.discard(index)
        return env
