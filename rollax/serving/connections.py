"""The connections of a policy server: uvicorn's, with limits on the size and duration of requests and responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from rollax.errors import RequestError
from rollax.serving.codec import JSON, MSGPACK, Codec, failure
from rollax.serving.protocol import ErrorResponse

_SLACK = 64 * 2**10  # chunk headers and trailers, and data of the next request
_HEADER_MARKS = 4  # colon, space and line break
_LARGE_HEAD = "The headers are too large."


class _Parser(httptools.HttpRequestParser):
    """A parser of requests.

    Attributes:
        rest: unparsed data after a request to upgrade the connection.
    """

    rest = b""

    def feed_data(self, data: bytes) -> None:
        """Parses data up to a request to upgrade the connection."""
        self.rest = b""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
            raise


class HttpConnection(HttpToolsProtocol):
    """One connection of HTTP/1.1 requests, one after another; a `StreamConnection` takes over a WebSocket.

    The connection refuses requests that do not arrive completely within `limits.request_timeout_s` (408), and headers
    larger than `limits.max_header_bytes` (431). It is aborted if a body continues after a refusal, or if the client
    does not read a response.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self._limits = self.app.limits  # type: ignore[attr-defined]
        self._address = self.client[0] if self.client else ""
        self._since: float | None = time.monotonic()
        self._in_head, self._head_size = True, 0
        self._size, self._completed = 0, False
        self._unsent = (0, time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.app.left(self._address)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parses received data, within the limits."""
        self._completed = False
        super().data_received(data)
        while self.parser.rest and self.transport.get_protocol() is self:  # other upgrades are ignored
            super().data_received(self.parser.rest)
        if self._since is None or self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if not self._completed:  # otherwise some of the data belongs to earlier requests
            self._size += len(data)
        if self._in_head and self._size > self._limits.max_header_bytes:
            self._refuse(431, _LARGE_HEAD)
        elif self._size > self._limits.max_body_bytes + _SLACK:
            self.transport.abort()

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection over to a `StreamConnection`, with the data after the handshake."""
        self._in_head = True  # `cycle` belongs to the previous request
        if self.parser.get_http_version() != "1.1":
            self._refuse(400, "The handshake of a WebSocket is of another version than HTTP/1.1.")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._refuse(400, "The handshake of a WebSocket came before the response to the last request.")
        else:
            super().handle_websocket_upgrade()
            stream: StreamConnection = self.transport.get_protocol()  # type: ignore[assignment]
            stream.refuse_malformed()
            if self.parser.rest:
                stream.data_received(self.parser.rest)

    def on_message_begin(self) -> None:
        """Starts the clock of a request."""
        super().on_message_begin()
        self._since = time.monotonic()
        self._in_head, self._head_size, self._size = True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; trailers after a chunked body are ignored."""
        if self._in_head:
            super().on_header(name, value)
            self._count_head(len(name) + len(value) + _HEADER_MARKS)

    def _count_head(self, size: int) -> None:
        """Counts parsed bytes of a head, because it may arrive all at once; the error stops the parser."""
        self._head_size += size
        if self._head_size > self._limits.max_header_bytes:
            raise RequestError(_LARGE_HEAD, status=431)

    def on_headers_complete(self) -> None:
        """Starts the execution of a request."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stops the clock of a request."""
        self._since, self._completed = None, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers data that is not HTTP, or a head at which `_count_head` stopped the parser."""
        if self._in_head and self._head_size > self._limits.max_header_bytes:
            self._refuse(431, _LARGE_HEAD)
        else:
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
        cycle = self.cycle  # while a head is parsed, the cycle of the previous request
        if cycle is None or (cycle.response_complete if self._in_head else not cycle.response_started):
            self.transport.write(_refusal(status, what))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class StreamConnection(WebSocketsSansIOProtocol):
    """One WebSocket, taken over from `HttpConnection` with its handshake.

    Messages bypass uvicorn's queue, and responses bypass its coroutines, because queue and coroutines take longer than
    the forward pass of a small policy: `Stream` gets this connection in its scope, and sets `on_message`.

    The connection is aborted if the client leaves more than `limits.max_unsent_bytes` of responses unread, does not
    answer a ping, or sends a message that does not arrive completely within `limits.request_timeout_s`.

    Attributes:
        on_message: executes a message, bytes of JSON or msgpack; None before the handshake.
    """

    on_message: Callable[[bytes, Codec], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.app_state = {"connection": self}  # uvicorn copies it into the scope
        self._since: float | None = None
        self.transport.set_write_buffer_limits(high=self.app.limits.max_unsent_bytes)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops the connection; responses that become ready later are dropped."""
        super().connection_lost(exc)
        self.app.left(self.client[0] if self.client else "")  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Parses received data; starts the clock of a message that has not arrived in full."""
        if self.handshake_initiated and not self.handshake_complete:
            self._refuse(400, "A message came before the response to the handshake.")
            return
        super().data_received(data)
        if not self.frames and not self.conn.reader.buffer:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()

    def handle_cont(self, event: Frame) -> None:
        """Appends a part of a message to one array; a list of very small or empty parts could fill the memory."""
        first, *_ = self.frames
        if not isinstance(first, bytearray):
            self.frames = [first := bytearray(first)]  # type: ignore[list-item]
        first += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        data, self.frames, self._since = bytes(self.frames[0]), [], None
        if self.on_message is None or self.close_sent or self.transport.is_closing():
            return
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
        if self.conn.handshake_exc is not None:
            self._refuse(431, "The headers of the handshake are malformed or too large.")

    def _refuse(self, status: int, what: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_refusal(status, what))
            self.transport.close()

    def tick(self, now: float) -> None:
        """Ends the connection of a client that is too slow; uvicorn pings silent clients."""
        if self._since is not None and now - self._since > self.app.limits.request_timeout_s:  # type: ignore[attr-defined]
            self.app.metrics.cut_off += 1  # type: ignore[attr-defined]
            self.transport.abort()


def _refusal(status: int, what: str) -> bytes:
    _, body, _ = failure(RequestError(what, status=status))
    content = JSON.encode(ErrorResponse(body))
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, HTTPStatus(status).phrase.encode(), len(content)) + content
