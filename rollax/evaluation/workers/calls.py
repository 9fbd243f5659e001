"""What the pool notes of its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Reply(NamedTuple):
    """What a request for a fragment, or for gradients, has brought."""

    index: int
    value: Any


class Call(NamedTuple):
    """A call of a worker's method, and why it was made: of a request that was forgotten nobody wants the reply."""

    method: str
    kind: Literal["make", "request", "forgotten", "call"]


@dataclass(slots=True)
class Worker:
    """A worker that has been started, and what is under way there."""

    handle: Any
    started: bool  # it has answered once
    since: float  # time.monotonic() of its last answer, or of the call before which it had nothing to do
    version: int = -1  # of the last update that was sent to it
    under_way: dict[Any, Call] = field(default_factory=dict)  # by reference
