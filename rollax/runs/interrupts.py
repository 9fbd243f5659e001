"""Ctrl-C (SIGINT) and SIGTERM."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, ClassVar

_PAUSE_S = 0.01


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program at once; `number` is the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopRequest:
    """Turns Ctrl-C (SIGINT) and SIGTERM into a flag that the training loop reads between iterations.

    Only the main thread gets signals; `StopRequest.forward` sets the flags of the requests in other threads.

    A second signal raises `Interrupted`. The functions `announce` are called in the signal handler and must not block.
    Signal handlers of C code, in a program that embeds Python, are kept, because Python could not restore them.
    """

    of_threads: ClassVar[set[StopRequest]] = set()
    """The requests of all threads except the main thread."""

    def __init__(self, *announce: Callable[[], None]) -> None:
        self.signal: int | None = None
        self._announce = announce
        self._undo = ExitStack()

    @classmethod
    def forward(cls, number: int) -> None:
        """Asks the loops of all other threads to stop, as a first signal does."""
        for request in list(cls.of_threads):
            if request.signal is None:
                request._handle(number, None)

    def explains(self, error: BaseException) -> bool:
        """Whether an error may be an effect of the first signal, not of a second one.

        Ctrl-C also reaches the other processes of a terminal, so processes of the environment may have ended.
        """
        return self.signal is not None and (isinstance(error, Exception) or type(error) is KeyboardInterrupt)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            self.of_threads.add(self)
            self._undo.callback(self.of_threads.discard, self)
        else:
            self._undo.enter_context(no_lost_interrupts())
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not None:
                    self._undo.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise Interrupted(number)
        self.signal = number
        for announce in self._announce:
            announce()


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raises `Interrupted` for SIGTERM, which would end the process; a program's own handler is kept."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_interrupted(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextmanager
def no_lost_interrupts() -> Iterator[None]:
    """Raises the signal of a dropped KeyboardInterrupt again.

    Python drops exceptions in `__del__` and in callbacks of the garbage collector. Signals often interrupt JAX's
    callback of the garbage collector, because this is often the first Python code after long C code.
    """
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            number = dropped.exc_value.number if isinstance(dropped.exc_value, Interrupted) else signal.SIGINT
            _thread.start_new_thread(_send_again, (number,))  # `threading` may hold a lock at the signal
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _send_again(number: int) -> None:
    time.sleep(_PAUSE_S)  # until the collection is over
    identity = threading.main_thread().ident
    if identity is not None:
        signal.pthread_kill(identity, number)
