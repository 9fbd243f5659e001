"""The WebSocket side of a policy server: /v1/stream, with many pending requests on one connection.

It is an asyncio protocol without a task or a queue: a message is executed when it is received, and its response is
written when it is ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import State
from websockets.server import ServerProtocol

from rollax.errors import RequestError
from rollax.serving.codec import JSON, MSGPACK, QUERIES, VERBS, Codec, failure, stream_failure
from rollax.serving.protocol import ErrorResponse
from rollax.serving.security import SUBPROTOCOL, headers_of

PATH = "/v1/stream"

_PING_EVERY_S, _PONG_WITHIN_S = 20.0, 40.0
_GOING_AWAY = 1001


class Stream(asyncio.Protocol):
    """One connection, handed over by uvicorn's HTTP protocol with its first request.

    A client that does not read its responses is disconnected when more than `limits.max_unsent_bytes` are unsent; one
    that does not answer pings, after 40 seconds of silence.
    """

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        del app_state, _loop
        self._app = config.loaded_app
        self._state = server_state
        self._limits = self._app.limits
        self._connection = ServerProtocol(max_size=self._limits.max_body_bytes, select_subprotocol=_select_subprotocol)
        self._parts = bytearray()
        self._text = True
        self._open = False
        self._headers: Mapping[bytes, bytes] = {}
        self._client = self._address = ""
        self._heard = self._pinged = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes over the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self._state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        self._client = f"{self._address}:{peer[1]}" if peer else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops the connection; responses that become ready later are dropped."""
        del exc
        self._state.connections.discard(self)
        self._app.left(self._address)
        if self._open:
            self._open = False
            self._app.metrics.streams -= 1

    def data_received(self, data: bytes) -> None:
        """Executes the complete messages."""
        connection = self._connection
        self._heard = time.monotonic()
        connection.receive_data(data)
        for event in connection.events_received():
            if isinstance(event, Frame):
                self._on_frame(event)
            else:
                self._on_handshake(cast(Handshake, event))
        self._flush()

    def eof_received(self) -> bool:
        """Lets the transport close."""
        self._connection.receive_eof()
        return False

    def shutdown(self) -> None:
        """Closes the connection because the server stops."""
        if self._open and self._connection.state is State.OPEN:
            self._connection.send_close(_GOING_AWAY)
            self._write_waiting()
        self.transport.close()

    def tick(self, now: float) -> None:
        """Pings a silent client, and aborts the connection of one that stays silent; called about once a second."""
        silent = now - self._heard
        if not self._open or silent > _PONG_WITHIN_S:
            if silent > (_PONG_WITHIN_S if self._open else self._limits.request_timeout_s):
                self.transport.abort()
        elif silent > _PING_EVERY_S and now - self._pinged > _PING_EVERY_S:
            self._pinged = now
            if self._connection.state is State.OPEN:
                self._connection.send_ping(b"")
                self._flush()

    def _on_handshake(self, handshake: Handshake) -> None:
        headers = headers_of(
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in handshake.headers.raw_items()
        )
        try:
            if handshake.path.partition("?")[0] != PATH:
                raise RequestError("There is no stream at this path.", status=404, expected=PATH)
            self._app.check(headers, self._address)
        except Exception as error:
            status, body, _ = failure(error)
            response = self._connection.reject(status, "")
            response.headers["Content-Type"] = "application/json"
            del response.headers["Content-Length"]
            response.body = JSON.encode(ErrorResponse(body))
            response.headers["Content-Length"] = str(len(response.body))
        else:
            response = self._connection.accept(handshake)
        self._connection.send_response(response)
        if response.status_code == 101:
            self._headers = {b"host": headers.get(b"host", b"")}
            self._open = True
            self._app.metrics.streams += 1

    def _on_frame(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CONT:
            self._parts += frame.data
        elif opcode is Opcode.TEXT or opcode is Opcode.BINARY:
            self._text = opcode is Opcode.TEXT
            if frame.fin:
                self._on_message(frame.data)
                return
            self._parts = bytearray(frame.data)
        else:
            return  # ServerProtocol has answered a ping or a close
        if frame.fin:
            data, self._parts = self._parts, bytearray()
            self._on_message(bytes(data))

    def _on_message(self, data: Any) -> None:
        started = time.perf_counter()
        codec = JSON if self._text else MSGPACK
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
            self._send_failure(codec, error, number, verb, started)
            return
        if isinstance(response, asyncio.Future):
            response.add_done_callback(lambda done: self._on_done(codec, done, number, verb, started))
        else:
            self._send(codec, codec.encode_response(number, response))
            self._app.metrics.observe(verb, 200, time.perf_counter() - started)

    def _on_done(self, codec: Codec, done: asyncio.Future[Any], number: int, verb: str, started: float) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._send_failure(codec, error, number, verb, started)
        else:
            self._send(codec, codec.encode_response(number, done.result()))
            self._app.metrics.observe(verb, 200, time.perf_counter() - started)
        self._flush()

    def _send_failure(self, codec: Codec, error: BaseException, number: int | None, verb: str, started: float) -> None:
        response = stream_failure(error, number)
        self._app.metrics.observe(verb, response.status, time.perf_counter() - started)
        self._send(codec, codec.encode(response))

    def _send(self, codec: Codec, data: bytes) -> None:
        if self._connection.state is not State.OPEN:
            return
        if codec is JSON:
            self._connection.send_text(data)
        else:
            self._connection.send_binary(data)

    def _flush(self) -> None:
        """Writes the outgoing data; disconnects a client that does not read."""
        self._write_waiting()
        if self.transport.get_write_buffer_size() > self._limits.max_unsent_bytes:
            self._app.metrics.cut_off += 1
            self.transport.abort()

    def _write_waiting(self) -> None:
        close = False
        parts = []
        for part in self._connection.data_to_send():
            if part:
                parts.append(part)
            else:
                close = True  # websockets marks the end of its side by an empty part
        if self.transport.is_closing():
            return
        if parts:
            self.transport.write(b"".join(parts))
        if close:
            self.transport.close()


def _select_subprotocol(connection: ServerProtocol, offered: Any) -> Any:
    """Accepts the subprotocol `rollax`, or none; one with a token is never repeated in the response."""
    del connection
    return SUBPROTOCOL if SUBPROTOCOL in offered else None
