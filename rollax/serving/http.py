"""The HTTP side of a policy server: an ASGI application with one route for each verb."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from rollax.errors import RequestError
from rollax.serving import metrics
from rollax.serving.codec import JSON, MSGPACK, QUERIES, Codec, failure
from rollax.serving.openapi import description, description_page
from rollax.serving.protocol import REQUESTS, ErrorResponse
from rollax.serving.security import Access, Headers, Rates, headers_of

if TYPE_CHECKING:
    from rollax.serving.service import Service

_CONTENT_TYPES = {
    b"": JSON,
    JSON.content_type: JSON,
    MSGPACK.content_type: MSGPACK,
    b"application/x-www-form-urlencoded": JSON,  # the default of curl -d and urllib
}
_GET = ("health", "statistics", "metrics", "weights", "policy")
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


@dataclass(frozen=True, slots=True)
class Page:
    """A page or file that needs no token, so it must not contain data of the run."""

    content: bytes
    content_type: bytes = b"text/html; charset=utf-8"


def _packaged(name: str) -> bytes:
    """A file of this package."""
    return (Path(__file__).parent / name).read_bytes()


@dataclass(slots=True)
class Reply:
    """A response."""

    body: bytes = b""
    status: int = 200
    content_type: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Request:
    """The head of a request, and a method that reads its body."""

    method: str
    path: str
    query: bytes
    headers: Headers
    client: str
    receive: Callable[[], Awaitable[Any]]

    async def body(self, limit: int) -> bytes:
        """Reads the body; raises RequestError (413) as soon as it exceeds `limit`."""
        if int(self.headers.get(b"content-length", b"0")) > limit:
            raise _too_large(limit)
        message = await self.receive()
        body = message.get("body", b"")
        if message.get("more_body", False):
            parts, size = [body], len(body)
            while message.get("more_body", False):
                message = await self.receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise _too_large(limit)
            body = b"".join(parts)
        if message["type"] == "http.disconnect":
            raise _Gone
        if len(body) > limit:
            raise _too_large(limit)
        return body


class _Gone(Exception):  # noqa: N818  no error of the server
    """The client has closed the connection."""


class HttpApp:
    """All routes. `GET /` and `pages` need no token, everything under /v1 requires it.

    Args:
        service: executes the verbs.
        access: decides which requests are allowed.
        pages: path -> page.
    """

    def __init__(self, service: Service, access: Access, pages: Mapping[str, Page] | None = None) -> None:
        self.service, self.access, self.limits = service, access, service.limits
        self.metrics = metrics.Metrics()
        self.address = ""
        self._addresses: Counter[str] = Counter()
        self.rates = Rates(self.limits.requests_per_s, self.limits.requests_per_s)
        self._files: dict[tuple[str, str], tuple[str, asyncio.Future[bytes]]] = {}
        self._nonce = secrets.token_hex(4)
        self._pages = {
            "/": Page(_packaged("page.html")),
            "/rollax.js": Page(_packaged("clients/rollax.js"), b"text/javascript; charset=utf-8"),
            "/docs": Page(description_page().encode()),
            "/openapi.json": Page(msgspec.json.encode(description()), b"application/json"),
            **(pages or {}),
        }
        self._verbs = {"/v1": "hello", **{f"/v1/{verb}": verb for verb in (*_GET, *REQUESTS)}}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        started = time.perf_counter()
        request = _request(scope, receive)
        verb = "other"
        try:
            verb, page = self._route(request)
            reply = await self._answer(request, verb, page)
        except _Gone:
            return
        except Exception as error:
            reply = _failed(error)
        headers = [
            (b"content-type", reply.content_type),
            (b"content-length", str(len(reply.body)).encode()),
            *reply.headers,
            *(_SECURE_PAGE if verb == "page" else _SECURE),
        ]
        if b"origin" in request.headers:
            headers += self.access.cors_headers(request.headers)
        self.metrics.observe(verb, reply.status, time.perf_counter() - started)
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
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
        wait = self.rates.take(client)
        if wait:
            fix = "send it again after that time, or raise the limits of the server"
            raise RequestError("Too many requests from this address.", status=429, retry_after_s=wait, fix=fix)

    def query(self, verb: str, headers: Headers) -> Any:
        """Returns the response to a verb without a body."""
        response: Any = self.service.call(verb, None, "")
        if verb == "hello" and not response.addresses:
            return msgspec.structs.replace(response, addresses=[self._reached(headers)])
        if verb == "statistics":
            return {**response, "server": self.metrics.statistics()}
        return response

    def _reached(self, headers: Headers) -> str:
        """Returns the address of the server; if it listens on all addresses, the one that the client has used."""
        scheme, _, address = self.address.partition("://")
        name, _, port = address.rpartition(":")
        if name not in ("0.0.0.0", "[::]"):
            return self.address
        host = headers.get(b"host", b"").decode("latin-1")
        return f"{scheme}://{host or f'localhost:{port}'}"

    def _route(self, request: _Request) -> tuple[str, Page | None]:
        """Returns the verb of a path and method, and its page if it has one; raises RequestError (404 or 405)."""
        page = self._pages.get(request.path)
        verb = self._verbs.get(request.path)
        if page is None and verb is None:
            self.access.check_page(request.headers)
            raise RequestError("There is no such path.", status=404, where=request.path[:200], fix="see /docs")
        allowed = ("POST",) if verb in REQUESTS else ("GET", "HEAD")
        if request.method not in (*allowed, "OPTIONS"):
            raise _WrongMethodError(request.method, allowed)
        if request.method == "OPTIONS":
            return "preflight", None
        return verb or "page", page

    async def _answer(self, request: _Request, verb: str, page: Page | None) -> Reply:
        if page is not None or verb == "preflight":
            self.access.check_page(request.headers)
            if page is not None:
                return Reply(page.content, content_type=page.content_type)
            return Reply(status=204, headers=self.access.preflight_headers(request.headers))
        self.check(request.headers, request.client)
        if verb in REQUESTS:
            return await self._execute(request, verb)
        if verb == "metrics":
            return self._metrics()
        if verb in QUERIES:
            return Reply(JSON.encode(self.query(verb, request.headers)))
        return await self._file(request, verb, self.service.weights if verb == "weights" else self.service.onnx)

    async def _execute(self, request: _Request, verb: str) -> Reply:
        codec = _codec(request.headers.get(b"content-type", b""))
        body = codec.decode(verb, await request.body(self.limits.max_body_bytes))
        response = self.service.call(verb, body, request.client)
        if isinstance(response, asyncio.Future):
            response = await response
        return Reply(codec.encode(response), content_type=codec.content_type)

    def _metrics(self) -> Reply:
        statistics: Any = self.service.call("statistics", None, "")
        found = {name: value for name, value in statistics.items() if _is_number(value)}
        gauges = {("policy_version" if name == "version" else name): float(value) for name, value in found.items()}
        return Reply(self.metrics.text(gauges).encode(), content_type=metrics.CONTENT_TYPE)

    async def _file(self, request: _Request, kind: str, make: Callable[[str], asyncio.Future[bytes]]) -> Reply:
        """Returns a large file of one policy and version, which is made once, in a thread, for all requests."""
        policy_id = self._policy_id(request)
        etag = f'"{self._nonce}-{self.query("health", {}).version}"'
        headers = [(b"etag", etag.encode())]
        known = request.headers.get(b"if-none-match", b"").replace(b"W/", b"").replace(b" ", b"").split(b",")
        if etag.encode() in known or b"*" in known:
            return Reply(status=304, headers=headers)
        made, content = self._files.get((kind, policy_id), ("", None))
        if content is None or made != etag or (content.done() and (content.cancelled() or content.exception())):
            content = make(policy_id)
            content.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._files[kind, policy_id] = (etag, content)
        # A client that disconnects must not cancel the file for others.
        return Reply(await asyncio.shield(content), content_type=b"application/octet-stream", headers=headers)

    def _policy_id(self, request: _Request) -> str:
        try:
            query = parse_qs(request.query.decode("ascii"), strict_parsing=bool(request.query), max_num_fields=4)
        except ValueError as error:
            raise RequestError("The query is malformed.", where="query", got=str(error)) from error
        policies = list(self.query("hello", {}).policies)
        unknown = sorted(query.keys() - {"policy_id"})
        given = query.get("policy_id", [policies[0]] if len(policies) == 1 else [])
        if unknown or len(given) != 1:
            got = f"{', '.join(unknown) or len(given)}"
            raise RequestError(
                "The query is not a single policy_id.", status=422, where="query", got=got, expected=policies
            )
        return given[0]


class _WrongMethodError(RequestError):
    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(
            "The path does not support this method.", status=405, got=method, expected=" or ".join(allowed)
        )
        self.allowed = ", ".join((*allowed, "OPTIONS")).encode()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _request(scope: Any, receive: Any) -> _Request:
    client = scope["client"][0] if scope["client"] else ""
    headers = headers_of(scope["headers"])
    return _Request(scope["method"], scope["path"], scope["query_string"], headers, client, receive)


def _codec(content_type: bytes) -> Codec:
    kind, _, _ = content_type.partition(b";")
    codec = _CONTENT_TYPES.get(kind.strip().lower())
    if codec is None:
        raise RequestError(
            "The body has an unknown type.",
            status=415,
            where="header Content-Type",
            got=kind[:100].decode("latin-1"),
            expected="application/json or application/msgpack",
        )
    return codec


def _failed(error: Exception) -> Reply:
    status, body, retry_after_s = failure(error)
    reply = Reply(JSON.encode(ErrorResponse(body)), status)
    if retry_after_s is not None:
        reply.headers.append((b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()))
    if status == 401:
        reply.headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, _WrongMethodError):
        reply.headers.append((b"allow", error.allowed))
    return reply


def _too_large(limit: int) -> RequestError:
    return RequestError("The body is too large.", status=413, expected=f"at most {limit} bytes (limits.max_body_bytes)")
