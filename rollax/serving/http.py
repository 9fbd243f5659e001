"""The HTTP side of a policy server: a Starlette route for each verb, and one for the stream."""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from rollax.errors import InvalidRequestError, RequestError
from rollax.serving import metrics
from rollax.serving.codec import JSON, MSGPACK, Codec, failure
from rollax.serving.openapi import description, description_page
from rollax.serving.protocol import QUERIES, REQUESTS, ErrorResponse
from rollax.serving.security import Access, Headers, Rates, headers_of
from rollax.serving.stream import PATH, Stream, deny

if TYPE_CHECKING:
    from rollax.serving.service import Service

_CODECS = {
    b"": JSON,
    JSON.content_type: JSON,
    MSGPACK.content_type: MSGPACK,
    b"application/x-www-form-urlencoded": JSON,  # the default of curl -d and urllib
}
_PAGE = "page"
_SECURE = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_SECURE_PAGE = [
    *_SECURE,
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class _Reply(NamedTuple):
    """A response; made several times as fast as Starlette's."""

    body: bytes
    status: int = 200
    content_type: bytes = JSON.content_type
    headers: Sequence[tuple[bytes, bytes]] = ()


class _Request(NamedTuple):
    """The head of a request, and the function that receives its body."""

    scope: Scope
    headers: Headers
    client: str
    receive: Receive


_Answer = Callable[[_Request], _Reply | Awaitable[_Reply]]


class HttpApp:
    """The ASGI application: checks each request, and sends the response of its route's endpoint, or an error.

    Everything under /v1 requires the token. `pages` (path -> response to GET) require no token, and must not contain
    data of the run.
    """

    def __init__(self, service: Service, access: Access, pages: Mapping[str, Response] | None = None) -> None:
        self.service, self.access, self.limits = service, access, service.limits
        self.metrics = metrics.Metrics()
        self.address = ""
        self._addresses: Counter[str] = Counter()
        self._rates = Rates(self.limits.requests_per_s, self.limits.requests_per_s)
        self._files: dict[tuple[str, str], tuple[bytes, asyncio.Future[bytes]]] = {}
        self._nonce = secrets.token_hex(4)
        gets: dict[str, _Answer] = {
            **{verb: partial(self._answer_query, verb) for verb in QUERIES},
            "metrics": self._answer_metrics,
            "weights": partial(self._answer_file, "weights", service.weights),
            "policy": partial(self._answer_file, "policy", service.onnx),
        }
        routes = [
            *(self._route(f"/v1/{verb}", verb, partial(self._execute, verb), "POST") for verb in REQUESTS),
            *(self._route("/v1" if verb == "hello" else f"/v1/{verb}", verb, gets[verb]) for verb in gets),
            *(self._route(path, _PAGE, _shows(page)) for path, page in {**_pages(), **(pages or {})}.items()),
        ]
        # A dict is enough, because no path has parameters. Starlette's router would try one route after the other.
        self._routes: dict[tuple[str, str], BaseRoute] = {("http", route.path): route for route in routes}
        self._routes["websocket", PATH] = WebSocketRoute(PATH, Stream(self))

    def _route(self, path: str, verb: str, answer: _Answer, method: str = "GET") -> Route:
        return Route(path, _Endpoint(self, verb, answer), methods=[method])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or all messages of a stream."""
        route = self._routes.get((scope["type"], scope["path"]))
        if scope["type"] == "websocket":
            if route is None:
                await deny(RequestError("There is no stream at this path.", status=404, expected=PATH), send)
            else:
                await route.handle(scope, receive, send)
            return
        started = time.perf_counter()
        headers, client = headers_of(scope["headers"]), scope["client"][0] if scope["client"] else ""
        scope["app"], scope["verb"], scope["request"] = self, "other", _Request(scope, headers, client, receive)
        try:
            self.access.check_page(headers)
            if scope["method"] == "OPTIONS":
                scope["verb"] = "preflight"
                reply = _Reply(b"", 204, headers=self.access.preflight_headers(headers))
            elif route is None:
                where, fix = scope["path"][:200], "see /docs"
                raise RequestError("There is no such path.", status=404, where=where, fix=fix)
            else:
                await route.handle(scope, receive, send)
                reply = scope["reply"]
        except ClientDisconnect:
            return
        except Exception as error:
            reply = _failed(error, scope)
        verb = scope["verb"]
        sent = [
            (b"content-type", reply.content_type),
            (b"content-length", b"%d" % len(reply.body)),
            *reply.headers,
            *(_SECURE_PAGE if verb == _PAGE else _SECURE),
        ]
        if b"origin" in headers:
            sent += self.access.cors_headers(headers)
        self.metrics.observe(verb, reply.status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": reply.status, "headers": sent})
        await send({"type": "http.response.body", "body": reply.body})

    def came(self, address: str) -> bool:
        """Counts a connection; returns whether it may stay."""
        self.metrics.connections += 1
        self._addresses[address] += 1
        within = self._addresses[address] <= self.limits.max_connections_per_client
        return within and self.metrics.connections <= self.limits.max_connections

    def left(self, address: str) -> None:
        """Counts a connection that has ended."""
        self.metrics.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def check(self, headers: Headers, client: str) -> None:
        """Raises RequestError if the head of a request shows that it is not allowed."""
        self.access.check(headers, client)
        self.check_rate(client)

    def check_rate(self, client: str) -> None:
        """Counts a request; raises RequestError (429) if there are too many from its address."""
        if wait := self._rates.take(client):
            fix = "send it again after the seconds of Retry-After, or raise requests_per_s of the server's limits"
            raise RequestError("Too many requests from this address.", status=429, retry_after_s=wait, fix=fix)

    def query(self, verb: str, headers: Headers) -> Any:
        """Returns the response to a verb without a body."""
        response: Any = self.service.call(verb, None, "")
        if verb == "hello":
            addresses = [self._reached(address, headers) for address in response.addresses or [self.address]]
            return msgspec.structs.replace(response, addresses=addresses)
        if verb == "statistics":
            return {**response, "server": self.metrics.statistics()}
        return response

    def _reached(self, address: str, headers: Headers) -> str:
        """The `address` of a server of the run; the host of the client's request replaces 0.0.0.0 or [::]."""
        scheme, _, place = address.partition("://")
        name, _, port = place.rpartition(":")
        if name not in ("0.0.0.0", "[::]"):
            return address
        host = headers.get(b"host", b"").decode("latin-1")
        if host and address == self.address:
            return f"{scheme}://{host}"
        return f"{scheme}://{re.sub(':[0-9]*$', '', host) or 'localhost'}:{port}"

    # The answers of the routes.

    async def _execute(self, verb: str, request: _Request) -> _Reply:
        codec = _codec(request.headers.get(b"content-type", b""))
        body = codec.decode(verb, await _body(request, self.limits.max_body_bytes))
        response = self.service.call(verb, body, request.client)
        if hasattr(response, "__await__"):
            response = await response
        return _Reply(codec.encode(response), content_type=codec.content_type)

    def _answer_query(self, verb: str, request: _Request) -> _Reply:
        return _Reply(JSON.encode(self.query(verb, request.headers)))

    def _answer_metrics(self, request: _Request) -> _Reply:
        statistics: Any = self.service.call("statistics", None, "")
        gauges = {
            "policy_version" if name == "version" else name: float(value)
            for name, value in statistics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        return _Reply(self.metrics.text(gauges).encode(), content_type=metrics.CONTENT_TYPE)

    async def _answer_file(self, kind: str, make: Callable[[str], asyncio.Future[bytes]], request: _Request) -> _Reply:
        """A large file of one policy and version, which is made once, in a thread, for all requests."""
        policy_id = self._policy_id(request)
        etag = f'"{self._nonce}-{self.query("health", {}).version}"'.encode()
        known = request.headers.get(b"if-none-match", b"").replace(b"W/", b"").replace(b" ", b"").split(b",")
        if etag in known or b"*" in known:
            return _Reply(b"", 304, headers=[(b"etag", etag)])
        made, content = self._files.get((kind, policy_id), (b"", None))
        if content is None or made != etag or (content.done() and (content.cancelled() or content.exception())):
            content = make(policy_id)
            content.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._files[kind, policy_id] = (etag, content)
        # A client that disconnects must not cancel the file for others.
        return _Reply(await asyncio.shield(content), 200, b"application/octet-stream", [(b"etag", etag)])

    def _policy_id(self, request: _Request) -> str:
        query = request.scope["query_string"]
        try:
            fields = parse_qs(query.decode("ascii"), strict_parsing=bool(query), max_num_fields=4)
        except ValueError as error:
            raise RequestError("The query is malformed.", where="query", got=str(error)) from error
        policies = list(self.query("hello", {}).policies)
        unknown = sorted(fields.keys() - {"policy_id"})
        given = fields.get("policy_id", [policies[0]] if len(policies) == 1 else [])
        if unknown or len(given) != 1:
            got = f"{', '.join(unknown) or len(given)}"
            raise InvalidRequestError("The query is not a single policy_id.", "query", got, expected=policies)
        return given[0]


class _Endpoint:
    """The endpoint of one route; puts its reply into the scope, for `HttpApp`. The verb of pages is `_PAGE`."""

    def __init__(self, app: HttpApp, verb: str, answer: _Answer) -> None:
        self._app, self._verb, self._answer = app, verb, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, scope["verb"] = scope["request"], self._verb
        if self._verb != _PAGE:
            self._app.check(request.headers, request.client)
        reply = self._answer(request)
        scope["reply"] = reply if isinstance(reply, _Reply) else await reply


def _pages() -> dict[str, Response]:
    folder = Path(__file__).parent
    return {
        "/": Response((folder / "page.html").read_bytes(), media_type="text/html"),
        "/rollax.js": Response((folder / "clients/rollax.js").read_bytes(), media_type="text/javascript"),
        "/docs": Response(description_page(), media_type="text/html"),
        "/openapi.json": Response(JSON.encode(description()), media_type="application/json"),
    }


def _shows(page: Response) -> _Answer:
    headers = dict(page.raw_headers)
    content_type = headers.pop(b"content-type", b"application/octet-stream")
    headers.pop(b"content-length", None)
    reply = _Reply(bytes(page.body), page.status_code, content_type, list(headers.items()))
    return lambda _: reply


async def _body(request: _Request, limit: int) -> bytes:
    """The body of a request; RequestError (413) as soon as its size or its Content-Length exceeds `limit`."""
    size = int(request.headers.get(b"content-length", b"0"))
    body = bytearray()  # a list of very small parts could fill the memory
    more = True
    while more:
        if max(size, len(body)) > limit:
            expected = f"at most {limit} bytes (limits.max_body_bytes)"
            raise RequestError("The body is too large.", status=413, expected=expected)
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _codec(content_type: bytes) -> Codec:
    kind, _, _ = content_type.partition(b";")
    codec = _CODECS.get(kind.strip().lower())
    if codec is None:
        raise RequestError(
            "The body has an unknown type.", "header Content-Type", kind[:100].decode("latin-1"), status=415
        ).expected("application/json or application/msgpack")
    return codec


def _failed(error: Exception, scope: Scope) -> _Reply:
    headers = []
    if isinstance(error, HTTPException) and error.headers:  # the path has a route, but not for this method
        allowed = error.headers["Allow"]
        headers.append((b"allow", f"{allowed}, OPTIONS".encode()))
        what = "The path does not support this method."
        error = RequestError(what, status=405, got=scope["method"], expected=f"one of {allowed}")
    status, body, retry_after_s = failure(error)
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if retry_after_s is not None and math.isfinite(retry_after_s):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_s))))
    return _Reply(JSON.encode(ErrorResponse(body)), status, headers=headers)
