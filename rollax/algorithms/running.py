"""`Running`: which methods of a trainer are running, and which ones a callback or another thread may not call then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from rollax.errors import RollaxError

Method = TypeVar("Method", bound=Callable[..., Any])

TRAIN = "train()"
ITERATION = "an iteration of train()"
PLAYING = "evaluate()", "record()"
_BETWEEN = "call it in on_train_result, or between two calls of train()"
_IN_LOOP = "let the callback return; call train() in a loop, or fit(), outside of callbacks"


class Running:
    """The methods of a trainer that are running; callbacks are called inside of them.

    Args:
        owner: the name of the trainer's class, for errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._methods: list[tuple[str, int]] = []  # with their threads

    @contextmanager
    def marked(self, method: str) -> Iterator[None]:
        """The method is running in the block."""
        entry = method, threading.get_ident()
        try:  # an interrupt may come before or after `append`
            self._methods.append(entry)
            yield
        finally:
            if entry in self._methods:
                self._methods.remove(entry)

    def refuse(self, method: str, *inside: str) -> None:
        """Raises RollaxError if one of the methods `inside` is running: training in any thread, others in this one."""
        here = threading.get_ident()
        for running, thread in self._methods:
            if running in inside and (thread == here or running in (TRAIN, ITERATION)):
                raise RollaxError(
                    f"{method} was called inside of {running}.",
                    where=f"{self._owner}.{method}, in a callback or another thread",
                    got=f"{running}, which is running",
                    expected=f"a call after {running} has ended",
                    fix=_IN_LOOP if method in (TRAIN, "fit()") else _BETWEEN,
                )


def not_inside_itself(method: Method) -> Method:
    """Makes a method of a trainer refuse calls while it is running; `train` also while episodes are evaluated."""
    name = f"{getattr(method, '__name__', '')}()"
    others = PLAYING if name == TRAIN else ()

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._running.refuse(name, name, *others)
        with self._running.marked(name):
            return method(self, *args, **kwargs)

    return cast(Method, guarded)
