"""What becomes of a worker that fails: the rules, and the books kept of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rollax.config import TrainerConfig
from rollax.errors import RemoteTraceback, WorkerError

log = logging.getLogger("rollax.workers")
_LONGEST_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class FailureRules:
    """The config's, for workers that fail; see `WorkerFields`.

    Args:
        restart: start them anew.
        ignore: go on without those that are not started anew.
        max_restarts: of all of them together.
        tolerance: failures of one in a row that are survived.
        delay_s: before the second restart in a row; each further one waits twice as long.
        timeout_s: without an answer after which a worker has hung.
        start_timeout_s: the same while it starts.
    """

    restart: bool = False
    ignore: bool = False
    max_restarts: int = 1000
    tolerance: int = 3
    delay_s: float = 1.0
    timeout_s: float = float("inf")
    start_timeout_s: float = 600.0

    @classmethod
    def of(cls, config: TrainerConfig) -> FailureRules:
        """Those of a config."""
        return cls(
            restart=config.recreate_failed_workers,
            ignore=config.ignore_worker_failures,
            max_restarts=config.max_num_worker_restarts,
            tolerance=config.num_consecutive_worker_failures_tolerance,
            delay_s=config.delay_between_worker_restarts_s,
            timeout_s=float("inf") if config.sample_timeout_s is None else config.sample_timeout_s,
            start_timeout_s=config.worker_start_timeout_s,
        )


class Failures:
    """Counts failures and decides what follows.

    Args:
        rules: that it decides by.
        name: of what fails, in the log.
    Attributes:
        last: worker index -> its last error.
        restarts: of all workers so far.
    """

    def __init__(self, rules: FailureRules, name: str = "Worker") -> None:
        self.rules, self._name = rules, name
        self.last: dict[int, Exception] = {}
        self.restarts = 0
        self._in_a_row: dict[int, int] = {}

    def succeeded(self, index: int) -> None:
        """The worker has delivered."""
        self._in_a_row.pop(index, None)

    def delay_before_restart(self, index: int, error: Exception) -> float | None:
        """Seconds until a worker that failed is to be started anew; None where the run goes on without it.

        Raises:
            Exception: the error itself, where the rules allow neither.
        """
        rules = self.rules
        self.last[index] = error
        failures = self._in_a_row[index] = self._in_a_row.get(index, 0) + 1
        # The traceback of the other process ends with the error itself.
        told = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else f"{type(error).__name__}: {error}"
        if rules.restart and failures <= rules.tolerance and self.restarts < rules.max_restarts:
            self.restarts += 1
            delay = 0.0 if failures == 1 else min(rules.delay_s * 2.0 ** (failures - 2), _LONGEST_DELAY_S)
            log.warning("%s %d failed and is started anew in %g s. %s", self._name, index, delay, told)
            return delay
        if not (rules.ignore or rules.restart):
            raise error
        why = "" if not rules.restart else f" after {failures} failures in a row and {self.restarts} restarts in all"
        log.error("%s %d failed and is given up%s. %s", self._name, index, why, told)
        return None


def no_worker_left(last: dict[int, Exception]) -> WorkerError:
    """The end of a run whose workers have all failed; its cause is the last one's error."""
    error = WorkerError(
        "No rollout worker is left.",
        where=f"workers {sorted(last)}",
        got="; ".join(f"worker {index}: {_in_one_line(error)}" for index, error in sorted(last.items())),
        expected="at least one that samples",
        fix="mend the cause shown above; num_workers=0 runs the same in this process, where a debugger works",
    )
    error.__cause__ = list(last.values())[-1] if last else None
    return error


def hung(index: int, waited_s: float, *, starting: bool) -> WorkerError:
    """A worker that has not answered in time."""
    got = f"no answer for {waited_s:.3g} s"
    if starting:
        return WorkerError(
            "A rollout worker did not start in time.",
            where=f"worker {index}",
            got=got,
            expected="a node with the resources that it reserves, and environments that can be made",
            fix="lower what each worker reserves, or raise worker_start_timeout_s",
        )
    return WorkerError(
        "A rollout worker has hung.",
        where=f"worker {index}",
        got=got,
        expected="a fragment in that time",
        fix="look for an endless loop in the environment; if it is only slow, raise sample_timeout_s or lower "
        "rollout_fragment_length",
    )


def _in_one_line(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}"


def in_worker(index: int) -> str:
    """What is noted on an error that came from a worker."""
    return f"(in rollout worker {index})"
