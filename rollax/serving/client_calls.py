"""The requests of a client: JSON over HTTP or msgpack over a WebSocket, repeated until they are answered."""

from __future__ import annotations

import itertools
import math
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from rollax.errors import EpisodeLostError, RequestError
from rollax.serving.client_connections import Address, Answer, Connection, ConnectionLost, HttpConnection, Page, Refused

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
_ATTEMPTS_IN_TIME = 3  # so that a dead connection leaves time for others
_UNAVAILABLE = (502, 503, 504)  # from a server that starts or stops, or from its proxy
_LOST = (404, 410)
_NOT_FINITE = "NaN or infinity, which JSON does not have"


class Calls:
    """Sends requests to one server. Thread safe: each waiting thread has its own connection.

    A request whose connection fails is sent again over a new one, after growing random pauses, with the same
    `request_id`: the server executes it once. A request that the server answers with 429 (too many requests), or with
    502, 503 or 504 (unavailable), is sent again, after the seconds of `Retry-After` if the answer has this header.

    Attributes:
        timeout: time limit in seconds of a request with its repetitions.
        max_bytes: the server's limit on the size of a request; None if unknown or unlimited.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self.max_bytes: float | None = None
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._process = os.getpid()
        self._closed = threading.Event()
        self._prefix, self._numbers = secrets.token_hex(6), itertools.count()

    def call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a verb.

        Raises:
            EpisodeLostError: the server has no such episode (any more).
            RequestError: the server refused the request, failed, or could not be reached in time.
        """
        named = {"request_id": f"{self._prefix}-{next(self._numbers)}", **body} if body else {}
        message = encode(verb, named, stream=self.address.stream)
        if self.max_bytes is not None and len(message) > self.max_bytes:
            # Checked here, because a server closes the connection after reading too much, which looks like a failed
            # connection.
            got, expected = f"{len(message)} bytes", f"at most {self.max_bytes:.0f} bytes"
            raise RequestError(
                "The request is larger than the policy server accepts.", f"{self.address.text}, {verb}", got, status=413
            ).expected(expected, "send less in one request, or raise max_body_bytes of the server's limits")

        def send(connection: Connection, deadline: float) -> Answer:
            return connection.request(verb, message, deadline)

        answer = self._until_answered(verb, send)
        if answer.status == 200 and isinstance(answer.body, dict):
            return answer.body
        raise _error(verb, body.get("episode_id"), answer, self.address.text)

    def fetch(self, path: str, headers: Mapping[str, str]) -> Page:
        """Status, headers and content of a page, over HTTP; RequestError for a status from 400 on."""

        def send(connection: Connection, deadline: float) -> Answer:
            assert isinstance(connection, HttpConnection)
            page = connection.fetch("GET", path, deadline, None, {**self.address.headers, **headers})
            return connection.as_answer(page) if page[0] >= 400 else Answer(page[0], page)

        answer = self._until_answered(path, send)
        if answer.status >= 400:
            raise _error(path, None, answer, self.address.text)
        return answer.body

    def close(self) -> None:
        """Closes idle connections, and others when they become idle; ends the pauses of waiting threads."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _until_answered(self, what: str, send: Callable[[Connection, float], Answer]) -> Answer:
        deadline = time.monotonic() + self.timeout
        last: Answer | None = None
        for attempt in itertools.count():
            if self._closed.is_set():
                raise RequestError(
                    "This policy client is closed.", self.address.text, status=503, fix="create another PolicyClient"
                )
            problem, reused = "", False
            pause = random.uniform(0.5, 1.0) * min(_FIRST_WAIT_S * 2 ** min(attempt, 30), _LONGEST_WAIT_S)
            try:
                connection, reused = self._take(deadline)
                last = self._send(connection, send, deadline)
            except Refused as error:
                last = error.answer
            except ConnectionLost as error:
                last, problem = None, str(error)
                if reused and attempt == 0:
                    continue  # the server has closed an idle connection, which is normal
            if last is not None:
                if last.status != 429 and last.status not in _UNAVAILABLE:
                    return last
                pause = pause if last.retry_after is None else last.retry_after + random.uniform(0.0, 0.1) * pause
            if time.monotonic() + pause >= deadline:
                break
            self._closed.wait(pause)
        if last is not None:
            return last
        raise RequestError(
            "The policy server could not be reached, or did not answer in time.",
            f"{self.address.text}, {what}",
            problem,
            status=503,
            expected=f"an answer within {self.timeout:g} s",
        ).fix("check that the server runs at this address, or raise `timeout` of PolicyClient")

    def _send(self, connection: Connection, send: Callable[[Connection, float], Answer], deadline: float) -> Answer:
        limit = min(deadline, time.monotonic() + self.timeout / _ATTEMPTS_IN_TIME)
        try:
            answer = send(connection, limit)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return answer

    def _take(self, deadline: float) -> tuple[Connection, bool]:
        """An open connection, and whether it was reused."""
        if self._process != os.getpid():  # after a fork, the connections belong to the parent
            self._process, self._idle, self._lock = os.getpid(), [], threading.Lock()
            self._prefix = secrets.token_hex(6)
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.alive():
                return connection, True
            connection.close()
        return self.address.connect(deadline), False

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(connection)
                return
        connection.close()


def _error(verb: str, episode_id: Any, answer: Answer, address: str) -> RequestError:
    """The error in an answer, with the server's text."""
    body = answer.body if isinstance(answer.body, dict) else {}
    details = body.get("error")
    details = details if isinstance(details, dict) else {}
    lost = answer.status in _LOST and (episode_id is not None or verb == "get_actions")
    known = {key: details[key] for key in ("where", "got", "expected", "fix") if details.get(key) is not None}
    known.setdefault("where", f"{address}, {verb}")
    return (EpisodeLostError if lost else RequestError)(
        str(details.get("what") or f"The policy server answered {verb} with status {answer.status}."),
        status=answer.status,
        retry_after_s=answer.retry_after,
        error_id=details.get("id"),
        **known,
    )


def encode(verb: str, body: Mapping[str, Any], *, stream: bool) -> bytes:
    """The message of a request, for a WebSocket if `stream`; RequestError for values that cannot be sent."""
    try:
        if stream:
            return _MSGPACK.encode({"verb": verb, "id": 0, **body})
        message = _JSON.encode(body)
        if b"null" in message:  # msgspec also writes NaN as null
            _refuse_not_finite(body)
        return message
    except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError) as error:
        raise RequestError("The value cannot be sent to a policy server.", verb, str(error)).expected(
            "finite numbers, strings, lists, numeric arrays, and dicts with strings as keys",
            "convert the value to one of these",
        ) from error


def _refuse_not_finite(value: Any) -> None:
    """Raises ValueError for a NaN or infinity, except in infos, where it becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(_NOT_FINITE)
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in ("info", "infos"):
                _refuse_not_finite(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_not_finite(part)


def _as_lists(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(_NOT_FINITE)
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is not a number, string, list, dict or numeric array")


def _as_arrays(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf" or not value.ndim:
        return _as_lists(value)
    little = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return {"dtype": little.dtype.str, "shape": little.shape, "data": little.tobytes()}


_JSON = msgspec.json.Encoder(enc_hook=_as_lists)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_as_arrays)
