"""`Running`: which methods of a trainer are running, and which ones a callback or another thread may not call then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from rollax.errors import RollaxError

Method = TypeVar("Method", bound=Callable[..., Any])

ITERATION = "an iteration of train()"
_BETWEEN = "call it in on_train_result, or between two calls of train()"
_IN_LOOP = "let the callback return; call train() in a loop, or fit(), outside of callbacks"


class Running:
    """The methods of a trainer that are running; callbacks are called inside of them.

    Args:
        owner: the name of the trainer's class, for errors.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._methods: list[str] = []

    @contextmanager
    def marked(self, method: str) -> Iterator[None]:
        """The method is running in the block."""
        self._methods.append(method)
        try:
            yield
        finally:
            self._methods.remove(method)

    def refuse(self, method: str, *inside: str) -> None:
        """Raises RollaxError if one of the methods `inside` is running."""
        for running in inside:
            if running in self._methods:
                raise RollaxError(
                    f"{method} was called inside of {running}.",
                    where=f"{self._owner}.{method}, in a callback or another thread",
                    got=f"{running}, which is running",
                    expected=f"a call after {running} has ended",
                    fix=_IN_LOOP if running == "train()" else _BETWEEN,
                )


def not_inside_itself(method: Method) -> Method:
    """Makes a method of a trainer refuse calls while it is running."""
    name = f"{getattr(method, '__name__', '')}()"

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._running.refuse(name, name)
        with self._running.marked(name):
            return method(self, *args, **kwargs)

    return cast(Method, guarded)
