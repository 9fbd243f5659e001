"""`Meeting`: threads that wait for each other at compiled calls, which are then made as one mapped call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class MeetingEndedError(KeyboardInterrupt):
    """The calls of all threads were ended; like Ctrl-C, this error interrupts training or an evaluation."""


class _Call(NamedTuple):
    """A waiting call; calls with equal `kind` and `together` can be made as one call."""

    function: Callable[..., Any]
    kind: Hashable
    together: Hashable
    mapped: tuple[Any, ...]
    shared: tuple[Any, ...]


class Meeting:
    """Threads that wait for each other at compiled calls.

    When all threads wait, the call of the thread with the fewest calls so far is made, together with all waiting calls
    of equal `kind` and `together`: the arguments are stacked on the host, and the function is called once, mapped over
    the runs.

    Args:
        size: S, the number of threads, which are numbered from 0 on.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._members = set(range(size))
        self._served = [0] * size
        self._waiting: dict[int, _Call] = {}
        self._results: dict[int, Any] = {}
        self._mapped: dict[Hashable, Callable[..., Any]] = {}
        self._ended = False

    def call(
        self,
        member: int,
        kind: Hashable,
        function: Callable[..., Any],
        mapped: tuple[Any, ...],
        shared: tuple[Any, ...] = (),
        together: Hashable = (),
    ) -> Any:
        """The result of `function(*mapped, *shared)`, in NumPy.

        Args:
            member: the number of the thread.
            kind: identifies the function: calls with equal kinds have equal functions.
            function: a function that JAX can trace.
            mapped: arguments that differ between the runs: arrays, or trees of arrays.
            shared: arguments that are equal in all runs of one call.
            together: calls are made together only if this value is equal; it must determine `shared`.
        Raises:
            MeetingEndedError: `end` was called.
        """
        with self._changed:
            self._waiting[member] = _Call(function, kind, together, mapped, shared)
            while member not in self._results:
                if self._ended:
                    del self._waiting[member]
                    raise MeetingEndedError
                if len(self._waiting) == len(self._members):
                    self._serve()
                else:
                    self._changed.wait()
            self._served[member] += 1
            result = self._results.pop(member)
        if isinstance(result, BaseException):
            raise result
        return result

    def leave(self, member: int) -> None:
        """Removes a thread that has ended: the other threads no longer wait for it."""
        with self._changed:
            self._members.discard(member)
            self._changed.notify_all()

    def end(self) -> None:
        """Raises MeetingEndedError in all waiting and all later calls."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _serve(self) -> None:
        """Makes the call of the thread with the fewest calls so far, and all waiting calls that can join this call."""
        first = self._waiting[min(self._waiting, key=lambda member: (self._served[member], member))]
        group = sorted(
            member
            for member, call in self._waiting.items()
            if (call.kind, call.together) == (first.kind, first.together)
        )
        calls = [self._waiting.pop(member) for member in group]
        try:
            results: Sequence[Any] = self._made(first.kind, calls)
        except BaseException as error:  # every thread of the group raises it
            results = [error] * len(group)
        self._results |= zip(group, results, strict=True)
        self._changed.notify_all()

    def _made(self, kind: Hashable, calls: Sequence[_Call]) -> list[Any]:
        # Few sizes, because each is compiled: all runs, or a power of two.
        size = self._size if 2 * len(calls) > self._size else 1 << (len(calls) - 1).bit_length()
        key = kind, size
        if key not in self._mapped:
            first = calls[0]
            axes = (*[0] * len(first.mapped), *[None] * len(first.shared))
            self._mapped[key] = jax.jit(jax.vmap(first.function, in_axes=axes))
        padded = [*calls, *[calls[-1]] * (size - len(calls))]
        stacked = jax.tree.map(_stacked, *(call.mapped for call in padded))
        found = jax.tree.map(_on_host, self._mapped[key](*stacked, *calls[0].shared))
        return [jax.tree.map(lambda leaf: leaf[number], found) for number in range(len(calls))]  # noqa: B023


def _stacked(*leaves: Any) -> Any:
    return jnp.stack(leaves) if _is_key(leaves[0]) else np.stack(leaves)


def _on_host(leaf: jax.Array) -> Any:
    return leaf if _is_key(leaf) else np.asarray(leaf)


def _is_key(leaf: Any) -> bool:
    """Whether an array has random keys, which NumPy has no dtype for."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
