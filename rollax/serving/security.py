"""Access to a policy server: token, Host, Origin, CORS, and rates by client address.

All checks use only the head of a request, before its body is read. The token is read from its file once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from rollax.errors import ConfigError, RequestError

Headers = Mapping[bytes, bytes]
"""Lower-case name -> value; a header that is sent twice has both values, separated by a comma."""

SUBPROTOCOL = "rollax"
TOKEN_SUBPROTOCOL = "bearer."
"""Browsers cannot send headers with a WebSocket: they offer `rollax` and `bearer.<base64url of the token>`."""

_LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
_HOST = re.compile(rb"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._~-]+))(?::(?P<port>[0-9]{0,5}))?")
_REMEMBERED_CLIENTS = 4096
_MAX_TOKEN = 4096
_CORS_ALLOWED = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, if-none-match"),
    (b"access-control-max-age", b"600"),
]


def headers_of(items: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers from their lower-case names and values, in order."""
    headers: dict[bytes, bytes] = {}
    for name, value in items:
        headers[name] = value if name not in headers else headers[name] + b", " + value
    return headers


def check_address(host: str, token: str | None) -> None:
    """Raises ConfigError for an invalid host or token, or if other machines reach the host and there is no token."""
    for name, value in (("host", host), ("token", "" if token is None else token)):
        if not isinstance(value, str):
            raise ConfigError(f"{name} is not a string.", f"{name} of PolicyServer", value).expected(
                "a text", "write it in quotes"
            )
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        what, expected = "The token of the policy server is invalid.", "printable ASCII characters without spaces"
        raise ConfigError(
            what, "token", "an empty text" if not token else "a text with spaces or characters outside printable ASCII"
        ).expected(expected, 'python -c "import secrets; print(secrets.token_urlsafe())" > token.txt')
    if token is None and not is_loopback(host):
        raise ConfigError(
            "A policy server without a token must not be reachable from other machines.", "host", host
        ).expected(
            "127.0.0.1, ::1 or localhost, or a token", "pass token=..., or --token-file with the token in a file"
        )


def read_token(file: Path, where: str = "--token-file") -> str:
    """The token in a file: its only line. ConfigError if it cannot be read, or is not one line of printable ASCII."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_TOKEN + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        fix = "check the path and the permissions of the file"
        raise ConfigError("The token cannot be read.", where=where, got=f"{file} ({error})", fix=fix) from error
    if not text or len(text) > _MAX_TOKEN or not text.isprintable() or " " in text:
        expected = f"one line of 1 to {_MAX_TOKEN} printable ASCII characters without spaces"
        raise ConfigError(
            "The file does not contain a valid token.", f"{where} {file}", f"{len(text)} characters"
        ).expected(expected, f"create one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > {file}")
    return text


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an IP address, is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


class Access:
    """Decides from the head of a request whether it is allowed.

    Host: an IP address, localhost, the name that the server was started with, or one of `allowed_hosts`. A page that
    reaches the server by rebinding its own name in DNS sends that name, and is refused.
    Origin: absent, the origin of this server's own pages, or one of `allowed_origins`.

    Args:
        token: required as `Authorization: Bearer`; None: no token is required.
        allowed_origins: origins of foreign pages, as browsers send them ("https://example.org"); "*" for all.
        allowed_hosts: further names of this server, without a port.
        wrong_tokens_per_s: requests per second with a wrong or no token, of each address; more are answered with 429.
    """

    def __init__(
        self,
        host: str,
        token: str | None = None,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        wrong_tokens_per_s: float = 10.0,
    ) -> None:
        check_address(host, token)
        for name, given in (("allowed_origins", allowed_origins), ("allowed_hosts", allowed_hosts)):
            if isinstance(given, str):
                raise ConfigError(f"{name} is a single string.", name, given).expected("a list", f"write [{given!r}]")
        self._token = None if token is None else _digest(token.encode())
        self._origins = frozenset(_origin(origin) for origin in allowed_origins)
        self._names = _LOCAL_NAMES | {host.lower()} | {_allowed_host(name) for name in allowed_hosts}
        self._wrong_tokens = Rates(wrong_tokens_per_s, 10 * wrong_tokens_per_s)
        self._knows_host = lru_cache(maxsize=256)(self._check_host)

    def check_page(self, headers: Headers) -> None:
        """Raises RequestError (403) for a foreign Host or Origin."""
        host = headers.get(b"host", b"")
        if not self._knows_host(host):
            expected = "an IP address, localhost, or a name that the server was started with"
            raise RequestError(
                "The name in the Host header is not a name of this server.", "header Host", _shown(host), status=403
            ).expected(expected, "start the server with this name among allowed_hosts")
        origin = headers.get(b"origin")
        if origin is not None and not self._same_origin(origin, host) and not self.allows_origin(origin):
            raise RequestError(
                "Pages of this origin may not use the server.", "header Origin", _shown(origin), status=403
            ).fix("start the server with this origin among allowed_origins (--allow-origin)")

    def check(self, headers: Headers, client: str) -> None:
        """Raises RequestError for a foreign Host or Origin (403) and a missing or wrong token (401, or 429)."""
        self.check_page(headers)
        if self._token is None:
            return
        given = _bearer(headers)
        if given is not None and hmac.compare_digest(_digest(given), self._token):
            return
        wait = self._wrong_tokens.take(client)
        if wait:
            raise RequestError("Too many requests with a wrong token.", status=429, retry_after_s=wait)
        expected = "Bearer, a space, and the token that the server was started with"
        raise RequestError(
            "The token is missing." if given is None else "The token is wrong.", "header Authorization", status=401
        ).expected(expected, "give the server's token to the client, as in PolicyClient(address, token=...)")

    def allows_origin(self, origin: bytes) -> bool:
        """Whether pages of this foreign origin may use the server."""
        return "*" in self._origins or origin.decode("latin-1").lower() in self._origins

    def cors_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Returns the headers that allow a page of an allowed origin to read the response."""
        origin = headers.get(b"origin")
        if origin is None or not self.allows_origin(origin):
            return []
        exposed = (b"access-control-expose-headers", b"etag, retry-after")
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), exposed]

    def preflight_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Returns the headers of the answer to a browser's preflight request for an allowed origin."""
        allowed = [*self.cors_headers(headers), *_CORS_ALLOWED]
        if headers.get(b"access-control-request-private-network") == b"true":
            allowed.append((b"access-control-allow-private-network", b"true"))
        return allowed

    def _check_host(self, host: bytes) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def _same_origin(self, origin: bytes, host: bytes) -> bool:
        scheme, _, rest = origin.lower().partition(b"://")
        return scheme in (b"http", b"https") and rest == host.lower()


class Rates:
    """Token buckets: each key may take `per_s` requests a second, and up to `burst` at once.

    The buckets of the most recent keys are kept; dropped buckets have usually been full for a long time.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, max(burst, 1.0)  # otherwise a rate below 1 would never allow anything
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> float:
        """Takes a request and returns 0; if there is none, returns the seconds until there is one."""
        now = time.monotonic()
        left, since = self._buckets.get(key, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        if left < 1.0:
            return (1.0 - left) / self._per_s
        self._buckets[key] = (left - 1.0, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _REMEMBERED_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0


def _digest(token: bytes) -> bytes:
    # Tokens are compared by digests of equal length, so that the time does not depend on the tokens.
    return hashlib.sha256(token).digest()


def _bearer(headers: Headers) -> bytes | None:
    """Returns the token of a request, or None."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    for name in headers.get(b"sec-websocket-protocol", b"").split(b","):
        prefix, _, encoded = name.strip().partition(b".")
        if prefix + b"." == TOKEN_SUBPROTOCOL.encode():
            try:
                return base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
            except (binascii.Error, ValueError):
                return b""
    return None


def _host_name(host: bytes) -> str | None:
    """Returns the name or address in a Host header, in lower case, without port and brackets."""
    parts = _HOST.fullmatch(host)
    if parts is None or int(parts["port"] or 0) >= 1 << 16:
        return None
    return (parts["ipv6"] or parts["name"]).decode().lower()


def _allowed_host(name: str) -> str:
    if _host_name(name.encode()) != name.lower():
        raise ConfigError("An allowed host is not only a name.", "allowed_hosts", name).expected(
            'a name without scheme and port: "example.org"'
        )
    return name.lower()


def _origin(origin: str) -> str:
    if origin in ("*", "null"):
        return origin
    parts = urlsplit(origin)
    if not parts.scheme or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ConfigError(
            "An allowed origin is not of the form that browsers send.", "allowed_origins", origin
        ).expected('a scheme and a host, and a port if it is not the usual one: "https://example.org:8443"')
    return f"{parts.scheme}://{parts.netloc}".lower()


def _shown(value: bytes) -> str:
    return value[:200].decode("latin-1")
