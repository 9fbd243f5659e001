"""`RequestBatcher`: one forward pass for requests to a served policy that arrive together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollax.core import trees
from rollax.serving.acting import Actor, AgentMemory

log = logging.getLogger("rollax.serving")

_FILLS_A_PASS = 16
"""A request of this many rows or more does not wait for other requests to share its forward pass."""


@dataclass(slots=True, eq=False)
class Part:
    """The rows of a request that one policy acts on.

    Attributes:
        memories, given, rewards: per row, as for `Actor.act_on`; may be empty if the actor does not remember.
        agents: (episode id, agent id) of each row, for multi-agent servers.
        actions: the actions of all rows, once they are chosen.
    """

    actor: Actor
    columns: trees.Tree
    rows: int
    memories: Sequence[AgentMemory] = ()
    given: Sequence[Any] = ()
    agents: Sequence[tuple[str, str]] = ()
    rewards: Sequence[float] = ()
    actions: Sequence[Any] = ()

    def __post_init__(self) -> None:
        # Taken now, because later rewards belong to the action of this part.
        self.rewards = [memory.take_reward() for memory in self.memories]


OnDone = Callable[[Exception | None], None]
"""Called when the actions of all parts are chosen, or with the error of the forward pass."""

_Request = tuple[list[Part], OnDone]
_Parts = dict[Actor, list[Part]]


class RequestBatcher:
    """Makes one forward pass of each policy for all requests that arrive in one turn of the event loop.

    Short passes run in the thread of the event loop; long passes, and compilations, in a separate thread. All methods
    are called in the thread of the event loop.

    Attributes:
        actions: number of rows in all forward passes, including the rows of logged actions.
        batches: number of turns with forward passes.
    """

    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        self._waiting: deque[_Request] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._executor: ThreadPoolExecutor | None = None
        self.actions = self.batches = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts, or restarts after `close`; called before the first request."""
        self._loop, self._executor = loop, ThreadPoolExecutor(1, "rollax-policy")
        self._scheduled = self._in_thread = False

    def close(self) -> None:
        """Waits for the running pass, and drops the waiting requests."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()

    def add(self, parts: list[Part], on_done: OnDone) -> None:
        alone = not self._waiting and sum(part.rows for part in parts) >= _FILLS_A_PASS
        self._waiting.append((parts, on_done))
        if alone:  # waiting for other requests would cost a turn of the event loop
            self._flush()
        else:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._in_thread:
            assert self._loop is not None, "attach() first"
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Makes the forward passes of all waiting requests."""
        self._scheduled = False
        if self._in_thread or not self._waiting:
            return
        requests = self._take()
        parts = _by_actor(requests)
        if all(actor.is_quick(sum(part.rows for part in of_actor)) for actor, of_actor in parts.items()):
            self._answer(requests, parts)
            if self._waiting:
                self._schedule()
            return
        self._in_thread = True
        assert self._executor is not None
        self._executor.submit(self._answer_in_thread, requests, parts)

    def _take(self) -> list[_Request]:
        """The waiting requests up to, but not including, a second request of an agent with memory."""
        waiting = self._waiting
        if not self._remembers:
            requests = list(waiting)
            waiting.clear()
            return requests
        requests, seen = [], set()
        while waiting:
            memories = [memory for part in waiting[0][0] for memory in part.memories]
            if not seen.isdisjoint(memories):
                break
            seen.update(memories)
            requests.append(waiting.popleft())
        return requests

    def _answer_in_thread(self, requests: list[_Request], parts: _Parts) -> None:
        try:
            self._answer(requests, parts)
        finally:
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._thread_done)

    def _thread_done(self) -> None:
        self._in_thread = False
        if self._waiting:
            self._schedule()

    def _answer(self, requests: list[_Request], parts: _Parts) -> None:
        """Makes one pass of each policy, and answers."""
        failed: dict[Part, Exception] = {}
        for actor, of_actor in parts.items():
            self._act_on_each(actor, of_actor, failed)
        self.batches += 1
        for of_request, on_done in requests:
            try:
                on_done(next((failed[part] for part in of_request if part in failed), None))
            except Exception:  # the other requests still get their answers
                log.exception("A request could not be answered.")

    def _act_on_each(self, actor: Actor, parts: list[Part], failed: dict[Part, Exception]) -> None:
        """One pass of all parts; if it fails, one pass of each part, so that a request fails only by its own values."""
        try:
            self._act(actor, parts)
        except Exception as error:
            if len(parts) == 1:
                failed[parts[0]] = error
                return
            for part in parts:
                self._act_on_each(actor, [part], failed)

    def _act(self, actor: Actor, parts: list[Part]) -> None:
        first = parts[0]
        if len(parts) == 1:
            first.actions = actor.act_on(first.columns, first.memories, first.given, first.rewards)
            self.actions += first.rows
            return
        columns = trees.concat([part.columns for part in parts])
        of_rows = ([row for part in parts for row in getattr(part, name)] for name in ("memories", "given", "rewards"))
        actions = actor.act_on(columns, *of_rows)
        self.actions += len(actions)
        start = 0
        for part in parts:
            part.actions = actions[start : start + part.rows]
            start += part.rows


def _by_actor(requests: list[_Request]) -> _Parts:
    parts: _Parts = {}
    for of_request, _ in requests:
        for part in of_request:
            parts.setdefault(part.actor, []).append(part)
    return parts
