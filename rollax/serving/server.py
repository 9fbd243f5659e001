"""`PolicyServer`: a service on a port, in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rollax.errors import ConfigError, not_installed
from rollax.serving.backend import Backend
from rollax.serving.limits import Limits
from rollax.serving.metrics import Metrics
from rollax.serving.security import Access
from rollax.serving.service import Service

log = logging.getLogger("rollax.serving")
_GRACE_S = 2.0
_BACKLOG = 2048
_AGAIN_S = 0.1
_PING_EVERY_S, _PONG_WITHIN_S = 20.0, 40.0


class PolicyServer:
    """Serves a policy over HTTP and WebSockets, in a separate thread, until `stop`.

    Args:
        service: a `Service`, which executes the requests, or a backend, for which the server makes a `Service`.
        host: the address or name to listen on; all except loopback addresses require a token.
        port: the port; 0 for a free one.
        token: the token that clients must send as `Authorization: Bearer`.
        certificate: file of the TLS certificate chain (PEM); the address is then https.
        key: file of the private key, if it is not in the file of the certificate.
        allowed_origins: origins of foreign pages that may use the server.
        allowed_hosts: further names of this server in URLs.
        limits: the limits of the server; a `Service` has its own.
        pages: path -> `starlette.responses.Response` to GET, for which no token is required.

    Raises:
        ConfigError: the address cannot be used, the certificate cannot be read, or an argument is invalid or has no
            effect.
    """

    def __init__(
        self,
        service: Service | Backend,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        limits: Limits | None = None,
        pages: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(service, Backend) and not callable(getattr(service, "call", None)):
            raise ConfigError("The value cannot be served.", "PolicyServer", type(service).__name__).expected(
                "a Backend, such as PolicyBackend.from_checkpoint(path), or a Service"
            )
        if limits is not None and not isinstance(service, Backend):
            raise ConfigError(
                "Limits are given with a Service, which has its own.", "limits of PolicyServer", limits
            ).expected("a Backend with limits, or a Service", "pass them to the Service")
        if key is not None and certificate is None:
            raise ConfigError(
                "A private key is given without a certificate, so TLS would be off.", "certificate, key", f"key {key}"
            ).expected("both, or neither", "pass the certificate chain too")
        self.service = Service(service, limits) if isinstance(service, Backend) else service
        access = Access(host, token, allowed_origins, allowed_hosts, self.service.limits.wrong_tokens_per_s)
        self._tls = None if certificate is None else _tls(certificate, key)
        self._config = _uvicorn_config(self.service, access, pages)
        self._app = self._config.loaded_app
        self._socket = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self._app.address = f"{'https' if self._tls else 'http'}://{shown}:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, name="policy-server", daemon=True)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._ended = threading.Event()  # before Python 3.13, an interrupted `join` marks a running thread as ended
        self._ended.set()
        self._stopping: asyncio.Event
        self._connections: set[Any] = set()
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}

    @property
    def address(self) -> str:
        """The URL of the server, without a path."""
        return self._app.address

    @property
    def metrics(self) -> Metrics:
        """The counts of the requests."""
        return self._app.metrics

    def start(self) -> PolicyServer:
        """Starts and returns the server. ConfigError for a server that was started before."""
        if self._thread.ident is not None:
            raise ConfigError("The policy server was already started.", "PolicyServer.start", self.address).fix(
                "create a new PolicyServer; `with PolicyServer(...)` starts it, too"
            )
        self._ended.clear()
        self._thread.start()
        self._ready.result()
        return self

    def stop(self) -> None:
        """Refuses new requests, answers pending ones, and returns when the thread and all connections have ended."""
        if not self._ended.is_set() and self._ready.exception() is None:  # waits for a start that was interrupted
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                self._ready.result().call_soon_threadsafe(self._stopping.set)
        self._ended.wait()
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the server has stopped, or `timeout_s` seconds have passed."""
        self._ended.wait(timeout_s)

    def __enter__(self) -> PolicyServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._config.get_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        finally:
            self._ended.set()

    async def _serve(self) -> None:
        from uvicorn.server import ServerState

        loop, state = asyncio.get_running_loop(), ServerState()
        self._stopping, self._connections = asyncio.Event(), state.connections
        make: Callable[..., Any] = self._config.http_protocol_class

        def connection() -> asyncio.Protocol:
            return make(config=self._config, server_state=state, app_state={}, _loop=loop)

        self.service.start()
        accepting, ticker = loop.create_task(self._accept(connection)), loop.create_task(self._tick())
        self._ready.set_result(loop)
        try:
            await self._stopping.wait()
        finally:
            await _cancelled(accepting)
            self._socket.close()
            await self._end(state)
            await _cancelled(ticker)

    async def _accept(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Accepts connections. They are counted from here on, which also limits unfinished TLS handshakes."""
        while True:
            await _readable(self._socket)
            try:
                accepted, (address, *_) = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):  # the client has already disconnected
                continue
            except OSError:  # too many open files
                await asyncio.sleep(_AGAIN_S)
                continue
            accepted.setblocking(False)
            if self._app.came(address):
                handshake = asyncio.create_task(self._connect(make, accepted, address))
                self._handshakes[handshake] = accepted
                handshake.add_done_callback(self._handshakes.pop)
            else:
                self._app.left(address)
                accepted.close()

    async def _connect(self, make: Callable[[], asyncio.Protocol], accepted: socket.socket, address: str) -> None:
        """Passes an accepted socket to a connection, with TLS after the handshake."""
        timeout_s = None if self._tls is None else self._app.limits.request_timeout_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, accepted, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # the client has disconnected, does not use TLS, or stopped sending
            self._app.left(address)
        except Exception:  # an error of one connection must not affect others
            log.exception("A connection from %s could not be made.", address)
            self._app.left(address)
            accepted.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._app.limits.request_timeout_s / 2))
            self.metrics.tick()
            now = time.monotonic()
            for connection in list(self._connections):
                connection.tick(now)

    async def _end(self, state: Any) -> None:
        """Ends unfinished handshakes, gives the connections some time to finish, and then aborts them."""
        # Handshakes are not cancelled: uvloop may leave open a connection that is cancelled while it is made.
        for accepted in self._handshakes.values():
            with contextlib.suppress(OSError):  # the client has disconnected
                accepted.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*self._handshakes)

        async def ended(within_s: float) -> None:
            deadline = time.monotonic() + within_s
            while (state.connections or state.tasks) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)

        for connection in list(state.connections):
            connection.shutdown()
        await ended(_GRACE_S)
        self.service.close()  # answers requests that still wait for an action
        await ended(_GRACE_S / 4)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await ended(math.inf)


async def _readable(waiting: socket.socket) -> None:
    """Returns when a connection can be accepted.

    `loop.sock_accept` is not used: if it is cancelled just after a connection arrived, the connection is never closed.
    """
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(waiting, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(waiting)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancels a task, and returns when it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _uvicorn_config(service: Service, access: Access, pages: Mapping[str, Any] | None) -> Any:
    """Returns uvicorn's config, which its connections read."""
    try:
        import uvicorn

        from rollax.serving.connections import HttpConnection, StreamConnection
        from rollax.serving.http import HttpApp
    except ImportError as error:
        raise not_installed(
            "A policy server", error, where="rollax.serving", package="uvicorn", extra="serving"
        ) from error
    config = uvicorn.Config(
        HttpApp(service, access, pages),
        http=HttpConnection,
        ws=StreamConnection,
        ws_max_size=service.limits.max_body_bytes,
        ws_ping_interval=_PING_EVERY_S,
        ws_ping_timeout=_PONG_WITHIN_S,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=60,
    )
    config.load()
    return config


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 1 << 16:  # getaddrinfo accepts more
            raise OSError("not a port from 0 to 65535")
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        what = "The server cannot listen on this address."
        expected, fix = "an address of this machine and a free port", "choose another port, or 0 for any free one"
        raise ConfigError(what, "host, port", f"{host}:{port} ({error})", expected=expected, fix=fix) from error
    listening.setblocking(False)
    return listening


def _tls(certificate: str | Path, key: str | Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        fix = "check the paths, and that the key belongs to the first certificate in the chain"
        raise ConfigError(
            "The TLS certificate cannot be loaded.", "certificate, key", f"{certificate}, {key} ({error})"
        ).expected("files in PEM format: the certificate chain, and its private key without a password", fix) from error
    return context
