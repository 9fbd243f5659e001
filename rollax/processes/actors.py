"""`Actors`, the interface that an `ActorPool` uses, and actors in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rollax.errors import ConfigError
from rollax.processes.stacks import Stack


class ProcessLostError(Exception):
    """The process of an actor has ended; the message has the reason.

    Args:
        details: the whole description of how the process ended.
        unmade: the process did not make the actor, because it could not load its arguments or the constructor raised.
    """

    def __init__(self, reason: str, details: str = "", *, unmade: bool = False) -> None:
        super().__init__(reason)
        self.details, self.unmade = details, unmade


def unsendable(error: Exception, where: str, *, expected: str, fix: str) -> ConfigError:
    """The error of a value that cannot be pickled, from the error that `put` raised."""
    why = error.__cause__ or error  # Ray wraps the error in long advice
    got = f"{type(why).__name__}: {why}"
    return ConfigError("A value cannot be sent to another process.", where=where, got=got, expected=expected, fix=fix)


class Actors(Protocol):
    """Starts actors and calls them. An actor runs one call at a time, in the order of the calls."""

    def start(self, index: int, restarts: int) -> Any:
        """Starts the actor of an index, with the number of its restarts; returns its handle."""
        ...

    def call(self, handle: Any, method: str, *arguments: Any) -> Any:
        """Calls a method; returns a hashable reference to its outcome."""
        ...

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        """Returns the references of finished calls, when there are `count` or after the timeout."""
        ...

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        """The value or the exception of each finished call; a `ProcessLostError` if the process has ended.

        The cause of an exception shows the traceback of the actor's process.
        """
        ...

    def put(self, value: Any) -> Any:
        """A reference to a value; actors receive the value, which is sent once to each node."""
        ...

    def kill(self, handle: Any) -> None:
        """Ends the process of an actor at once."""
        ...

    def stack_of(self, index: int) -> Stack | None:
        """The stack of the actor's process where it crashed or hangs; None if it is not known."""
        ...


class _Outcome:
    """The reference to a finished call."""

    def __init__(self, value: Any) -> None:
        self.value = value


class LocalActors:
    """Objects of this process as actors, whose calls finish at once."""

    def __init__(self, start: Callable[[int, int], Any]) -> None:
        self._start = start

    def start(self, index: int, restarts: int) -> Any:
        return self._start(index, restarts)

    def call(self, handle: Any, method: str, *arguments: Any) -> Any:
        try:
            return _Outcome(getattr(handle, method)(*arguments))
        except Exception as error:
            return _Outcome(error)

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        return list(references)

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        return [reference.value for reference in references]

    def put(self, value: Any) -> Any:
        return value

    def kill(self, handle: Any) -> None:
        """Does nothing, as there is no process."""

    def stack_of(self, index: int) -> Stack | None:
        return None
