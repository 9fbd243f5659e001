"""The connections of a policy server: uvicorn's, with limits on the size and duration of requests and responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from rollax.errors import RequestError
from rollax.serving.codec import JSON, MSGPACK, Codec, failure
from rollax.serving.protocol import ErrorResponse

_SLACK = 64 * 2**10  # chunk headers and trailers, and data of the next request


class HttpConnection(HttpToolsProtocol):
    """One connection, with HTTP/1.1 requests one after another; `StreamConnection` takes over a WebSocket.

    It refuses requests that do not arrive completely within `limits.request_timeout_s` (408), headers larger than
    `limits.max_header_bytes` (431), bodies that continue after they were refused, and clients that do not read their
    response.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes over the transport."""
        super().connection_made(transport)
        self._limits = self.app.limits  # type: ignore[attr-defined]
        self._address = self.client[0] if self.client else ""
        self._since: float | None = time.monotonic()
        self._in_head = True
        self._size = 0
        self._unsent = (0, time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops the connection."""
        super().connection_lost(exc)
        self.app.left(self._address)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parses received data, within the limits."""
        super().data_received(data)
        if self._since is None or self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        self._size += len(data)
        if self._in_head and self._size > self._limits.max_header_bytes:
            self._refuse(431, "The headers are too large.")
        elif self._size > self._limits.max_body_bytes + _SLACK:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection over to a `StreamConnection`."""
        super().handle_websocket_upgrade()
        self.transport.get_protocol().refuse_malformed()  # type: ignore[attr-defined]

    def on_message_begin(self) -> None:
        """Starts the clock of a request."""
        super().on_message_begin()
        self._since = time.monotonic()
        self._in_head, self._size = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; the trailers after a chunked body are none."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts the execution of a request."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stops the clock of a request."""
        self._since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers data that is not HTTP."""
        self._refuse(400, msg)

    def tick(self, now: float) -> None:
        """Ends the connection of a client that is too slow; called about once a second."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent[0] or not self._unsent[0]:
            self._unsent = (unsent, now)
        elif now - self._unsent[1] > self._limits.request_timeout_s:
            self.app.metrics.cut_off += 1  # type: ignore[attr-defined]
            self.transport.abort()
        if self._since is not None and now - self._since > self._limits.request_timeout_s:
            self._refuse(408, "The request has not arrived in full in time.")

    def _refuse(self, status: int, what: str) -> None:
        """Answers a request that cannot be executed, unless it was answered before, and closes the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self._in_head or not self.cycle.response_started:
            self.transport.write(_refusal(status, what))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class StreamConnection(WebSocketsSansIOProtocol):
    """One WebSocket, taken over from `HttpConnection` with its handshake.

    Messages do not pass through uvicorn's queue, and responses not through a coroutine, which would take longer than
    the pass of a small policy: `Stream` gets this connection in its scope, and sets `on_message`.

    It is aborted if the client does not read its responses, and more than `limits.max_unsent_bytes` are unsent, or does
    not answer a ping.

    Attributes:
        on_message: executes a message, bytes of JSON or msgpack; None before the handshake.
    """

    on_message: Callable[[bytes, Codec], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes over the transport."""
        super().connection_made(transport)
        self.app_state = {"connection": self}  # uvicorn copies it into the scope
        self.transport.set_write_buffer_limits(high=self.app.limits.max_unsent_bytes)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops the connection; responses that become ready later are dropped."""
        super().connection_lost(exc)
        self.app.left(self.client[0] if self.client else "")  # type: ignore[attr-defined]

    def send_receive_event_to_app(self) -> None:
        """Executes a message."""
        if self.on_message is None or self.close_sent or self.transport.is_closing():
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        self.on_message(data, JSON if self.curr_msg_data_type == "text" else MSGPACK)

    def respond(self, data: bytes, codec: Codec) -> None:
        """Sends a message, unless the connection is lost."""
        if self.conn.state is not State.OPEN or self.transport.is_closing():
            return
        if codec is JSON:
            self.conn.send_text(data)
        else:
            self.conn.send_binary(data)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def pause_writing(self) -> None:
        """Disconnects a client that does not read."""
        self.app.metrics.cut_off += 1  # type: ignore[attr-defined]
        self.transport.abort()

    def keepalive_timeout(self) -> None:
        """Disconnects a silent client; closing the connection would wait until the client has read everything."""
        self.transport.abort()

    def refuse_malformed(self) -> None:
        """Refuses a handshake that cannot be parsed, which uvicorn leaves unanswered."""
        if self.conn.handshake_exc is not None and not self.transport.is_closing():
            self.transport.write(_refusal(431, "The headers of the handshake are malformed or too large."))
            self.transport.close()

    def tick(self, now: float) -> None:
        """Does nothing: uvicorn pings the clients."""


def _refusal(status: int, what: str) -> bytes:
    _, body, _ = failure(RequestError(what, status=status))
    content = JSON.encode(ErrorResponse(body))
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, HTTPStatus(status).phrase.encode(), len(content)) + content
