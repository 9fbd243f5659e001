"""The WebSocket side of a policy server: /v1/stream, with many pending requests on one connection."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from rollax.errors import RequestError
from rollax.serving.codec import JSON, MSGPACK, QUERIES, VERBS, Codec, failure, stream_failure
from rollax.serving.protocol import ErrorResponse
from rollax.serving.security import SUBPROTOCOL, headers_of

if TYPE_CHECKING:
    from rollax.serving.http import HttpApp

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
        connection = _Connection(self._app, address, f"{address}:{port}", {b"host": headers.get(b"host", b"")}, send)
        self._app.metrics.streams += 1
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if message["type"] == "websocket.receive":
                    await connection.execute(message)
        finally:
            self._app.metrics.streams -= 1


async def deny(error: Exception, send: Send) -> None:
    """Refuses a handshake, with the same response as over HTTP."""
    status, body, _ = failure(error)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": JSON.encode(ErrorResponse(body))})


class _Connection:
    """Executes the messages of one connection in their order; responses are sent when they are ready."""

    def __init__(self, app: HttpApp, address: str, client: str, headers: dict[bytes, bytes], send: Send) -> None:
        self._app, self._address, self._client, self._headers, self._send = app, address, client, headers, send
        self._waiting: set[asyncio.Task[None]] = set()

    async def execute(self, message: Message) -> None:
        """Executes a message, and sends its response, now or later."""
        started = time.perf_counter()
        text = message.get("text")
        codec, data = (MSGPACK, message["bytes"]) if text is None else (JSON, text)
        number, verb = None, "other"
        try:
            wait = self._app.rates.take(self._address)
            if wait:
                number = codec.id_of(data)
                raise RequestError("Too many requests from this address.", status=429, retry_after_s=wait)
            try:
                request = codec.decode_message(data)
            except RequestError:
                number = codec.id_of(data)
                raise
            number, verb = request.id, VERBS[type(request)]
            if verb in QUERIES:
                response = self._app.query(verb, self._headers)
            else:
                response = self._app.service.call(verb, request, self._client)
        except Exception as error:
            await self._fail(codec, error, number, verb, started)
            return
        if isinstance(response, asyncio.Future):
            task = asyncio.get_running_loop().create_task(self._later(codec, response, number, verb, started))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        else:
            await self._succeed(codec, response, number, verb, started)

    async def _later(self, codec: Codec, future: asyncio.Future[Any], number: int, verb: str, started: float) -> None:
        try:
            response = await future
        except Exception as error:
            await self._fail(codec, error, number, verb, started)
        else:
            await self._succeed(codec, response, number, verb, started)

    async def _succeed(self, codec: Codec, response: Any, number: int, verb: str, started: float) -> None:
        self._app.metrics.observe(verb, 200, time.perf_counter() - started)
        await self._respond(codec, codec.encode_response(number, response))

    async def _fail(self, codec: Codec, error: Exception, number: int | None, verb: str, started: float) -> None:
        response = stream_failure(error, number)
        self._app.metrics.observe(verb, response.status, time.perf_counter() - started)
        await self._respond(codec, codec.encode(response))

    async def _respond(self, codec: Codec, data: bytes) -> None:
        key, value = ("text", data.decode()) if codec is JSON else ("bytes", data)
        with suppress(ClientDisconnected):  # the response of a lost connection is dropped
            await self._send({"type": "websocket.send", key: value})
