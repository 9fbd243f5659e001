"""The rules for failed actors: restart them after a delay, continue without them, or raise their error."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollax.errors import RemoteTraceback, RollaxError, WorkerError, text_of

if TYPE_CHECKING:
    from rollax.config import TrainerConfig
    from rollax.processes.actors import ProcessLostError
    from rollax.processes.stacks import Stack

log = logging.getLogger("rollax.processes")
_LONGEST_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class FailureRules:
    """How failures are handled; see `WorkerFields`."""

    restart: bool = False
    ignore: bool = False  # leave failed actors out: at the start, and later if `restart` is false
    max_restarts: int = 1000  # the most restarts of all actors together
    tolerance: int = 3  # the most failures in a row of one actor that still lead to a restart
    delay_s: float = 1.0  # delay before the second restart in a row; it doubles with each further one
    timeout_s: float = float("inf")  # time without an answer after which an actor has hung
    start_timeout_s: float = 600.0  # the same time limit while an actor starts

    @classmethod
    def of(cls, config: TrainerConfig) -> FailureRules:
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
    """Counts failures of actors called `name` and decides what to do; `advice` is the fix for a hanging actor."""

    def __init__(self, rules: FailureRules, name: str, advice: str = "") -> None:
        self.rules, self.name, self._advice = rules, name, advice
        self.last: dict[int, Exception] = {}  # index -> last error, the newest at the end
        self.restarts = 0  # the number of restarts of all actors
        self.in_a_row: dict[int, int] = {}  # index -> failures since the last success

    def succeeded(self, index: int) -> None:
        """Resets the actor's count of failures in a row."""
        self.in_a_row.pop(index, None)

    def failed(self, index: int, error: Exception) -> float | None:
        """Counts a failure; returns the seconds until a restart, or None if the actor is left out.

        Raises the error if neither `restart` nor `ignore` of the rules is set.
        """
        rules = self.rules
        self.last.pop(index, None)
        self.last[index] = error
        failures = self.in_a_row[index] = self.in_a_row.get(index, 0) + 1
        if rules.restart and failures <= rules.tolerance and self.restarts < rules.max_restarts:
            self.restarts += 1
            delay = 0.0 if failures == 1 else min(rules.delay_s * 2.0 ** (failures - 2), _LONGEST_DELAY_S)
            message = "%s %d failed (failure %d in a row) and is restarted in %g s."
            log.warning(message, self.name.capitalize(), index, failures, delay, exc_info=error)
            return delay
        if not (rules.ignore or rules.restart):
            raise error
        message = "%s %d failed (failure %d in a row) and is not restarted; there were %d restarts in all."
        log.error(message, self.name.capitalize(), index, failures, self.restarts, exc_info=error)
        return None

    def unavailable(self, indices: Sequence[int] = ()) -> WorkerError:
        """The error of a call to actors that cannot be called, `indices` or all; its cause is the last error."""
        last = sorted(self.last.items())
        room = 280 // max(len(last), 1)  # a message shows 300 characters, and each actor should be named
        error = WorkerError(
            f"Some {self.name}s cannot be called." if indices else f"No {self.name} is left.",
            f"{self.name}s {list(indices) or [index for index, _ in last]}",
            "; ".join(f"{index}: {_in_one_line(error, room)}" for index, error in last) or "they have been stopped",
        ).expected(
            "all of them" if indices else "at least one that works",
            "fix the cause shown above; num_workers=0 runs the same code in this process, where a debugger works"
            if last
            else "make the call before stop(), or make new actors",
        )
        error.__cause__ = list(self.last.values())[-1] if last else None
        return error

    def hung(
        self, index: int, call: str, waited_s: float, *, starting: bool, stack: Stack | None = None
    ) -> WorkerError:
        """The error of an actor that has not answered in time; `stack` is the actor's stack shortly before."""
        where, got = self._where(index, call, stack), f"no answer for {waited_s:.3g} s"
        if starting:
            error = WorkerError(f"A {self.name} did not start in time.", where, got).expected(
                "environments that can be made"
                + (", and a node with the resources that the process reserves" if stack is None else ""),
                "lower what each worker reserves, or raise worker_start_timeout_s"
                if stack is None
                else "find in the stack what the process waits for; if it is only slow, raise worker_start_timeout_s",
            )
        else:
            expected = f"an answer within {self.rules.timeout_s:g} s"
            error = WorkerError(f"A {self.name} has hung.", where=where, got=got, expected=expected, fix=self._advice)
        error.__cause__ = None if stack is None else RemoteTraceback(stack.text)
        return error

    def lost(self, index: int, call: str, how: ProcessLostError, stack: Stack | None = None) -> WorkerError:
        """The error of an actor whose process has ended; the details and the stack are shown above it."""
        if how.unmade:
            error = WorkerError(f"A process cannot make its {self.name}.", f"{self.name} {index}", str(how)).expected(
                "a process that can import the environment, policies and callbacks",
                "fix the cause shown above; a missing module must be installed on every node, or be sent with Ray's "
                "runtime_env",
            )
        else:
            error = WorkerError(
                f"The process of a {self.name} is gone.",
                self._where(index, call, stack),
                f"{stack.reason}; {how}" if stack is not None and stack.reason else str(how),
            ).expected(
                "a process that runs",
                "look for a crash in native code, a lack of memory, sys.exit() or os._exit(), or a lost node",
            )
        above = "\n\n".join(filter(None, [how.details, "" if stack is None else stack.text]))
        error.__cause__ = RemoteTraceback(above) if above else None
        return error

    def _where(self, index: int, call: str, stack: Stack | None) -> str:
        return f"{self.name} {index}, {call}" + ("" if stack is None else f", in {stack.place}")


def _in_one_line(error: Exception, room: int) -> str:
    first, *others = text_of(error).splitlines() or [""]
    # Names the parts of a rollax error, whose traceback is often far above.
    lines = (" ".join(line.split()) for line in others)
    named = [line for line in lines if line.startswith(("where:", "got:", "expected:"))]
    text = f"{type(error).__name__}: {first}" + (f" ({'; '.join(named)})" if isinstance(error, RollaxError) else "")
    return text if len(text) <= room else f"{text[:room]}…"
