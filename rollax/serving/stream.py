"""The WebSocket side of a policy server: /v1/stream, with many pending requests on one connection."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from rollax.serving.codec import JSON, VERBS, Codec, failure
from rollax.serving.protocol import QUERIES, ErrorResponse, StreamError
from rollax.serving.security import SUBPROTOCOL, Headers, headers_of

if TYPE_CHECKING:
    from rollax.serving.connections import StreamConnection
    from rollax.serving.http import HttpApp
    from rollax.serving.pending import PendingRequest

PATH = "/v1/stream"


class Stream:
    """The ASGI application of /v1/stream: one call serves one connection."""

    def __init__(self, app: HttpApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address, port = scope["client"] or ("", 0)
        headers = headers_of(scope["headers"])
        try:
            self._app.check(headers, address)
        except Exception as error:
            await deny(error, send)
            return
        # A subprotocol with a token is never repeated in the response.
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        connection = scope["state"]["connection"]
        messages = _Messages(self._app, address, f"{address}:{port}", {b"host": headers.get(b"host", b"")}, connection)
        connection.on_message = messages.execute
        self._app.metrics.streams += 1
        try:
            while (await receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self._app.metrics.streams -= 1


async def deny(error: Exception, send: Send) -> None:
    """Refuses a handshake, with the same status and body as over HTTP."""
    status, body, _ = failure(error)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": JSON.encode(ErrorResponse(body))})


class _Messages:
    """Executes the messages of one connection in their order; responses are sent when they are ready."""

    def __init__(self, app: HttpApp, address: str, client: str, headers: Headers, connection: StreamConnection) -> None:
        self._app, self._address, self._client, self._headers = app, address, client, headers
        self._connection = connection

    def execute(self, data: bytes, codec: Codec) -> None:
        """Executes a message, and sends its response, now or later."""
        started = time.perf_counter()
        number, verb = None, "other"
        try:
            self._app.check_rate(self._address)
            request = codec.decode(None, data)
            number, verb = request.id, VERBS[type(request)]
            if verb in QUERIES:
                response = self._app.query(verb, self._headers)
            else:
                response = self._app.service.call(verb, request, self._client)
        except Exception as error:
            self._fail(codec, error, codec.id_of(data) if number is None else number, verb, started)
            return
        if hasattr(response, "add_done_callback"):
            response.add_done_callback(partial(self._on_done, codec, number, verb, started))
        else:
            self._succeed(codec, number, verb, started, response)

    def _on_done(
        self, codec: Codec, number: int, verb: str, started: float, done: PendingRequest | asyncio.Future[Any]
    ) -> None:
        if isinstance(done, asyncio.Future) and done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._succeed(codec, number, verb, started, done.result())
        else:
            self._fail(codec, error, number, verb, started)

    def _succeed(self, codec: Codec, number: int, verb: str, started: float, response: Any) -> None:
        self._connection.respond(codec.encode_response(number, response), codec)
        self._app.metrics.observe(verb, 200, time.perf_counter() - started)

    def _fail(self, codec: Codec, error: BaseException, number: int | None, verb: str, started: float) -> None:
        status, body, retry_after_s = failure(error)
        self._connection.respond(codec.encode(StreamError(body, status, number, retry_after_s)), codec)
        self._app.metrics.observe(verb, status, time.perf_counter() - started)
