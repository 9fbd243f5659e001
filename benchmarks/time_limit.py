"""A limit on the time of a call of `run_all`, for machines that are rented for minutes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class OutOfTimeError(Exception):
    """The time limit has been reached."""


class TimeLimit:
    """Counts from its construction.

    Args:
        seconds: the limit; None: there is none.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._ends_at = None if seconds is None else time.monotonic() + seconds

    @property
    def exists(self) -> bool:
        """Whether the time is limited."""
        return self._ends_at is not None

    def allows(self, seconds: float) -> bool:
        """Returns whether so many seconds are left."""
        return self._ends_at is None or time.monotonic() + seconds <= self._ends_at

    def for_part(self, seconds: float) -> TimeLimit:
        """Returns a limit for a part of the work: so many seconds from now, or earlier; none, if this is none."""
        if self._ends_at is None:
            return TimeLimit()
        return TimeLimit(min(seconds, self._ends_at - time.monotonic()))

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Interrupts what the main thread does when the limit is reached. An earlier timer of the process waits.

        Raises:
            OutOfTimeError: the limit was reached, or had been before.
        """
        if self._ends_at is None:
            yield
            return
        begin = time.monotonic()
        if begin >= self._ends_at:
            raise OutOfTimeError("the time limit has been reached")
        handler = signal.signal(signal.SIGALRM, _raise)
        before, _ = signal.setitimer(signal.ITIMER_REAL, self._ends_at - begin)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if before:  # another timer was running, as in tests
                signal.setitimer(signal.ITIMER_REAL, max(before - (time.monotonic() - begin), 1e-3))


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise OutOfTimeError("the time limit has been reached")
