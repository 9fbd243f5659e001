"""`PendingActions`: the requests for actions that wait for the backend, and their limits."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import Any

from rollax.env.external.queue import EnvStoppedError
from rollax.errors import RequestError, RollaxError
from rollax.serving import protocol as messages
from rollax.serving.limits import Limits
from rollax.serving.sessions import Agents, Key, Session, Sessions
from rollax.serving.values import plain

Response = Any
"""A struct of `rollax.serving.protocol`, or for `statistics` a dict."""

Result = Any
"""A response, or an awaitable of it with `add_done_callback`: a `PendingRequest` or a future."""


class PendingActions:
    """The requests for actions that the backend executes; all methods run in the event loop's thread, except `finish`.

    Attributes:
        count: number of observations that wait for an action.
    """

    def __init__(self, sessions: Sessions, limits: Limits, clock: Callable[[], float], *, multi_agent: bool) -> None:
        self._sessions, self._limits, self._clock = sessions, limits, clock
        self._multi_agent = multi_agent
        self.count = 0
        self._by_client: Counter[Hashable] = Counter()
        self._requests: set[PendingRequest] = set()
        self._finished: deque[tuple[PendingRequest, Any]] = deque()
        self._resolving = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = -1

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Binds to the event loop of this thread."""
        self._loop, self._thread = loop, threading.get_ident()

    def begin(
        self, client: Hashable, sessions: list[Session], agents: Agents, *, single: bool, key: Key | None
    ) -> PendingRequest:
        """Adds a request, which the caller then passes to the backend. `agents`: episode id -> agents.

        `single`: whether the response is one action. RequestError if an agent already waits, or a limit is exceeded.
        """
        self._sessions.refuse_waiting(agents)
        count, mine = self.count + len(sessions), self._by_client.get(client, 0) + len(sessions)
        for waiting, name in ((count, "max_pending"), (mine, "max_pending_per_client")):
            if waiting > getattr(self._limits, name):
                raise self._limits.exceeded("Too many observations are waiting for an action.", waiting, name)
        self.count, self._by_client[client] = count, mine
        request = PendingRequest(client, sessions, agents, single=single, key=key)
        self._sessions.begin_waiting(agents)
        self._requests.add(request)
        sessions[0].remember(key, request)
        return request

    def release(self, request: PendingRequest) -> None:
        """Removes a request, and undoes `begin`."""
        self._requests.discard(request)
        count = len(request.sessions)
        self.count -= count
        self._by_client[request.client] -= count
        if not self._by_client[request.client]:
            del self._by_client[request.client]
        self._sessions.end_waiting(request.agents)
        first = request.sessions[0]
        if request.key is not None and first.responses is not None:
            first.responses.pop(request.key, None)

    def fail(self, error: RequestError) -> None:
        for request in list(self._requests):
            self._resolve(request, error)

    def finish(self, request: PendingRequest, result: messages.Actions | BaseException) -> None:
        """Accepts the actions of a request, or its error, in any thread."""
        if threading.get_ident() == self._thread:
            self._resolve(request, result)
            return
        self._finished.append((request, result))
        if not self._resolving:
            assert self._loop is not None
            try:
                self._resolving = True
                self._loop.call_soon_threadsafe(self._resolve_finished)
            except RuntimeError:  # the loop and all connections are closed
                self._finished.clear()
            except BaseException:  # Ctrl-C
                self._resolving = False
                raise

    def _resolve_finished(self) -> None:
        self._resolving = False
        while self._finished:
            self._resolve(*self._finished.popleft())

    def _resolve(self, request: PendingRequest, result: messages.Actions | BaseException) -> None:
        if request.done:
            return
        self.release(request)
        if isinstance(result, BaseException):
            request.finish(None, as_request_error(result, 500) if isinstance(result, RollaxError) else result)
            return
        now = self._clock()
        for session in request.sessions:
            session.acted, session.last_response = True, now
        if self._multi_agent:
            for session in request.sessions:
                session.agents.update(request.agents[session.id])
        actions = plain(result.actions)
        response: Response = messages.Actions(actions, result.version)
        if request.single:
            response = messages.Action(actions[request.sessions[0].id], result.version)
        request.sessions[0].remember(request.key, response)
        request.finish(response)


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request for actions that the backend executes; it can be awaited.

    Attributes:
        done: whether it has a response or an error.
    """

    client: Hashable
    sessions: list[Session]
    agents: Agents
    single: bool
    key: Key | None
    done: bool = False
    _response: Response = None
    _error: BaseException | None = None
    _callbacks: list[Callable[[PendingRequest], None]] = field(default_factory=list)

    def __await__(self) -> Generator[Any, None, Response]:
        # A future of its own for each caller, so that cancelling it does not affect others.
        done = asyncio.get_running_loop().create_future()
        self.add_done_callback(lambda _: None if done.done() else done.set_result(None))
        yield from done
        return self.result()

    def add_done_callback(self, callback: Callable[[PendingRequest], None]) -> None:
        """Calls `callback(self)` as soon as the request is done; a future would call it one turn of the loop later."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def exception(self) -> BaseException | None:
        """The error of a request that is done."""
        return self._error

    def result(self) -> Response:
        """The response of a request that is done; raises its error."""
        if self._error is not None:
            raise self._error
        return self._response

    def finish(self, response: Response, error: BaseException | None = None) -> None:
        """Sets the response or the error."""
        self.done, self._response, self._error = True, response, error
        for callback in self._callbacks:
            callback(self)


def shutting_down(retry_after_s: float) -> RequestError:
    """The error of a request to a stopping server."""
    return RequestError("The server is shutting down.", status=503, retry_after_s=retry_after_s)


def as_request_error(error: RollaxError, status: int) -> RequestError:
    """The error as a RequestError: 503 for a stopped environment, `status` for other errors."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EnvStoppedError):
        return shutting_down(1.0)
    parts: dict[str, Any] = error.parts
    found = RequestError(**parts, status=status)
    found.__cause__ = error
    return found
