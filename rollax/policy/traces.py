"""How many versions of a policy's functions JAX has compiled: each one is traced once."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

_traces: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def note_trace(traced: Any) -> None:
    """Counts one version; called in the body of each function that `jax.jit` compiles with `traced` as its self."""
    _traces[traced] = _traces.get(traced, 0) + 1


def trace_count(traced: Any) -> int:
    """The number of compiled versions of the functions of `traced` and of objects equal to it."""
    return _traces.get(traced, 0)
