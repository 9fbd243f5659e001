"""`CallGuard`: refuses calls of a trainer's methods inside of other calls, or after the trainer was stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from rollax.errors import RollaxError

Method = TypeVar("Method", bound=Callable[..., Any])

TRAIN = "train()"
FIT = "fit()"
ITERATION = "an iteration of train()"
PLAYING = "evaluate()", "record()"
_BETWEEN = "call it in on_train_result, or between two calls of train()"
_AFTER_FIT = "set result['done'] = True in on_train_result, and call it after fit(); or call train() in a loop"
_IN_LOOP = "let the callback return; call train() in a loop, or fit(), outside of callbacks"


class CallGuard:
    """Records which methods of a trainer are running, because callbacks in them may call methods, too.

    Args:
        owner: the name of the trainer's class, for errors.
    Attributes:
        stopped: whether the environments are closed, or being closed.
    """

    def __init__(self, owner: str) -> None:
        self._owner, self.stopped = owner, False
        self._methods: list[tuple[str, int]] = []  # the running methods, and the ids of their threads

    @contextmanager
    def marked(self, method: str) -> Iterator[None]:
        """Marks the method as running while the block runs."""
        entry = method, threading.get_ident()
        try:  # an interrupt may come before or after `append`
            self._methods.append(entry)
            yield
        finally:
            if entry in self._methods:
                self._methods.remove(entry)

    def refuse(self, method: str, *inside: str) -> None:
        """Raises RollaxError if the trainer has been stopped, or one of the methods `inside` is running.

        A running `train` counts in any thread, other methods only in this thread.
        """
        if self.stopped:
            got = "a stopped trainer, whose environments and processes are closed"
            raise RollaxError(f"{method} was called after stop().", f"{self._owner}.{method}", got).expected(
                "such calls before stop(), or inside of the `with` block; a stopped trainer still acts and saves",
                "to end fit(), set result['done'] = True in a callback; to train after stop(), use "
                f"{self._owner}.from_checkpoint(trainer.save(folder))",
            )
        here = threading.get_ident()
        for running, thread in self._methods:
            if running in inside and (thread == here or running in (TRAIN, ITERATION)):
                fix = _IN_LOOP if method in (TRAIN, FIT) else _AFTER_FIT if running == FIT else _BETWEEN
                raise RollaxError(
                    f"{method} was called inside of {running}.",
                    f"{self._owner}.{method}, in a callback or another thread",
                    f"{running}, which is running",
                ).expected(f"a call after {running} has ended", fix)


def non_reentrant(method: Method) -> Method:
    """Makes a method of a trainer refuse calls inside of itself and after `stop`.

    `train` also refuses calls inside of `evaluate` and `record`, and from other threads while it runs.
    """
    name = f"{getattr(method, '__name__', '')}()"
    others = PLAYING if name == TRAIN else ()

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._running.refuse(name, name, *others)
        with self._running.marked(name):
            return method(self, *args, **kwargs)

    return cast(Method, guarded)
