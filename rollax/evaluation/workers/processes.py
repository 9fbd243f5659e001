"""What the pool of remote workers needs of whatever runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Processes(Protocol):
    """Starts workers, calls them and says what came of it. Ray does; a test may do it in its own process.

    A worker runs one call at a time, in the order in which they were made.
    """

    def start(self, index: int) -> Any:
        """A handle of a new worker of that index; it may come up later."""
        ...

    def call(self, worker: Any, method: str, *arguments: Any) -> Any:
        """A reference (hashable) to what a method of the worker will return."""
        ...

    def wait(self, references: Sequence[Any], count: int, timeout_s: float) -> list[Any]:
        """Those references whose calls are over, once `count` are or the time has passed."""
        ...

    def outcomes(self, references: Sequence[Any]) -> list[Any]:
        """What each of these finished calls returned, or the exception that it raised; its cause shows where.

        A process that is gone is a `WorkerError`.
        """
        ...

    def put(self, value: Any) -> Any:
        """What to pass as an argument of many calls in place of the value, which then travels once to each node."""
        ...

    def kill(self, worker: Any) -> None:
        """Ends a worker at once; calls under way come to nothing."""
        ...
