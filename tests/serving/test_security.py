"""Access to a policy server: addresses, tokens, hosts, origins, rates and TLS."""

import gc
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from contextlib import ExitStack, suppress
from http.client import HTTPException

import numpy as np
import pytest

from rollax.errors import ConfigError, RequestError
from rollax.serving import security
from rollax.serving.limits import Limits
from rollax.serving.security import Access, Rates, check_address, is_loopback
from rollax.serving.server import PolicyServer
from tests.env.refused import raised
from tests.serving.service_session import refused
from tests.serving.wire import ACTION, PATIENCE_S, TOKEN, EchoService, answer_to, ask, connected, head, place, serving
from tests.waiting import until


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback_requires_no_token(host):
    assert is_loopback(host)
    for token in (TOKEN, None):
        check_address(host, token)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example", ""])
def test_other_addresses_require_a_token(host):
    assert not is_loopback(host)
    check_address(host, TOKEN)
    raised(ConfigError, PolicyServer, EchoService(), host, says="without a token")


# The Host header is compared without its port, so another form than a name would match no host.
NO_HOSTS = ("server.example:9900", "http://server.example", "server.example/", "", "sérver")
NO_TOKENS = ("", "two words", "tab\t", "ä", "new\n")
NO_ORIGINS = ("game.example", "https://", "https://game.example/page")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *[(given, "is not a string") for given in ({"host": 5}, {"host": None}, {"token": 5})],
        *[({"token": token}, "token of the policy server is invalid") for token in NO_TOKENS],
        *[({"allowed_hosts": [name]}, "allowed host") for name in NO_HOSTS],
        *[({"allowed_origins": [name]}, "allowed origin") for name in NO_ORIGINS],
        *[({name: "https://a.b"}, f"{name}(?s:.)*https://a.b") for name in ("allowed_hosts", "allowed_origins")],
    ],
)
def test_malformed_settings(given, says):
    with pytest.raises(ConfigError, match=says):
        PolicyServer(EchoService(), **given)


KNOWN_HOSTS = b"localhost LocalHost:1234 127.0.0.1:9 [::1]:80 192.168.0.7 server.example:9900 further.example".split()
FOREIGN_HOSTS = (
    *b"evil.example evil.example:9900 localhost.evil.example 127.0.0.1.evil.example localhost/ localhost:x".split(),
    *b"localhost:65536 [::1].evil [::1].evil:80 [::1]evil evil[::1] [::1]:80:80 [localhost] 127.0.0.1[.evil]".split(),
    *(b"server.example@evil.example", b"server.example, evil.example", b"localhost\x00.evil", b"localhost#.evil"),
    *(b"\xff", b""),
)


@pytest.mark.parametrize("host", [*KNOWN_HOSTS, *FOREIGN_HOSTS])
def test_hosts(host):
    access = Access("server.example", TOKEN, allowed_hosts=["Further.example"])
    headers = {b"host": host, b"authorization": f"bearer {TOKEN}".encode()}
    if host in KNOWN_HOSTS:
        access.check(headers, "client")
    else:
        refused(403, access.check, headers, "client", says="Host")


OWN_ORIGINS = (None, b"http://localhost:9900", b"https://localhost:9900")
ALLOWED_ORIGINS = (b"https://game.example", b"https://GAME.example")
FOREIGN_ORIGINS = (
    *(b"http://localhost:9901", b"http://localhost", b"http://game.example", b"https://game.example.evil.example"),
    *(b"null", b"", b"ftp://localhost:9900"),
)


@pytest.mark.parametrize("origin", [*OWN_ORIGINS, *ALLOWED_ORIGINS, *FOREIGN_ORIGINS])
def test_origins(origin):
    access = Access("localhost", allowed_origins=["https://game.example/"])
    headers = {b"host": b"localhost:9900"} | ({} if origin is None else {b"origin": origin})
    if origin not in FOREIGN_ORIGINS:
        access.check(headers, "client")
    else:
        raised(RequestError, access.check, headers, "client", says="origin")
    named = dict(access.cors_headers(headers)).get(b"access-control-allow-origin")
    assert named == (origin if origin in ALLOWED_ORIGINS else None)


def test_all_origins_can_be_allowed():
    Access("localhost", allowed_origins=["*"]).check({b"host": b"localhost", b"origin": b"null"}, "client")


OTHER_TOKENS = [f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]


@pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer ", "Bearer wrong", *OTHER_TOKENS])
def test_wrong_tokens(given):
    with serving(token=TOKEN) as server:
        answer = ask(server, "/v1/get_action", ACTION, **({} if given is None else {"authorization": given}))
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert server.service.calls == []
        assert TOKEN not in answer.body.decode()
        assert ask(server, "/v1/get_action", ACTION, authorization=f"Bearer {TOKEN}").status == 200


def test_the_token_is_checked_before_the_body_is_read():
    with serving(token=TOKEN) as server, connected(server) as connection:
        connection.sendall(head(length=1000, Authorization="Bearer wrong", Expect="100-continue"))
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_tokens_are_compared_by_digests_of_one_length(monkeypatch):
    compared = []
    monkeypatch.setattr(security.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    access = Access("localhost", TOKEN)
    for token in ("x", "x" * 10_000, TOKEN):
        try:
            access.check({b"host": b"localhost", b"authorization": f"Bearer {token}".encode()}, "client")
        except RequestError:
            assert token != TOKEN
    assert {len(side) for pair in compared for side in pair} == {32}
    assert len(compared) == 3


def test_the_rate_of_wrong_tokens_is_limited():
    access = Access("localhost", TOKEN, wrong_tokens_per_s=1e-6)
    headers = {b"host": b"localhost"}
    for client in ("guesser", "other"):
        for status in (401, 429, 429):
            refused(status, access.check, headers, client)
    access.check({**headers, b"authorization": f"Bearer {TOKEN}".encode()}, "guesser")


def test_foreign_origins_and_hosts_are_refused():
    with serving(allowed_origins=["https://game.example"]) as server:
        assert ask(server, "/v1/health", host="evil.example").status == 403
        assert ask(server, "/docs", host="evil.example").status == 403
        assert ask(server, "/v1/get_action", ACTION, origin="https://evil.example").status == 403
        assert ask(server, "/none", origin="https://evil.example").status == 403
        preflight = ask(server, "/v1/get_action", method="OPTIONS", origin="https://evil.example")
        assert preflight.status == 403
        assert "access-control-allow-origin" not in preflight.headers
        assert server.service.calls == []
        answer = ask(server, "/v1/get_action", ACTION, origin="https://game.example")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://game.example")
        refused = ask(server, "/v1/get_action", b"{}", origin="https://game.example")
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (422, "https://game.example")
        assert ask(server, "/v1/health", origin=server.address).status == 200
        with connected(server) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 40")
        assert answer_to(server, b"GET /v1/health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("together", [True, False])
def test_trailers_of_a_body_are_no_headers(together):
    start = head(length="").replace(b"Content-Length: ", b"Transfer-Encoding: chunked")
    body = b"%x\r\n%b\r\n0\r\n" % (len(ACTION), ACTION) + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    with serving(token=TOKEN) as server, connected(server) as connection:
        for part in [start + body] if together else [start, body]:
            connection.sendall(part)
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        assert server.service.calls == []


def test_preflights_of_allowed_pages_are_answered_without_a_token():
    with serving(token=TOKEN, allowed_origins=["https://game.example"]) as server:
        answer = ask(
            server,
            "/v1/get_action",
            method="OPTIONS",
            origin="https://game.example",
            access_control_request_method="POST",
            access_control_request_headers="authorization,content-type",
            access_control_request_private_network="true",
        )
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "https://game.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(answer.headers["access-control-allow-headers"].split(", "))
    assert answer.headers["access-control-allow-private-network"] == "true"


def test_rates(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(security.time, "monotonic", lambda: now[0])
    rates = Rates(per_s=2.0, burst=3.0)
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.take("b") == 0
    now[0] += 0.5
    assert [rates.take("a"), rates.take("a")] == [0, 0.5]
    now[0] += 100.0
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    for number in range(10_000):
        rates.take(str(number))
    assert len(rates._buckets) <= 4096
    slow = Rates(per_s=0.5, burst=0.5)
    assert [slow.take("a"), slow.take("a")] == [0, 2.0]
    now[0] += 2.0
    assert slow.take("a") == 0


def certified(folder):
    """The files of a private key and of its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *new_key, *files, *names], check=True, capture_output=True)
    return key, certificate


@pytest.mark.skipif(shutil.which("openssl") is None, reason="apt-get install openssl")
def test_unfinished_tls_handshakes_are_limited(tmp_path):
    key, certificate = certified(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    limits = Limits(max_connections=3, request_timeout_s=600.0)
    with serving(limits=limits, certificate=certificate, key=key) as server:

        def status():
            with urllib.request.urlopen(f"{server.address}/v1/health", context=context, timeout=60) as answer:
                return answer.status

        with ExitStack() as stack:
            silent = [stack.enter_context(connected(server)) for _ in range(2)]
            silent[0].sendall(b"\x16\x03\x01")  # the beginning of a handshake
            until(lambda: server.metrics.connections == 2, "a connection is missing")
            assert status() == 200
            until(lambda: server.metrics.connections == 2, "a connection is left")
            stack.enter_context(connected(server))
            until(lambda: server.metrics.connections == 3, "a connection is missing")
            with pytest.raises(OSError):  # it is one too many
                status()
        until(lambda: server.metrics.connections == 0, "a connection is left")
        assert status() == 200
        stays = socket.create_connection(place(server))  # the server's stop does not wait for it
    stays.close()


@pytest.mark.long
def test_a_stop_closes_connections_that_have_just_arrived():
    for delay_s in np.linspace(0.0, 2e-4, 100):
        with PolicyServer(EchoService()) as server:
            client = socket.create_connection(place(server), timeout=PATIENCE_S)
            time.sleep(delay_s)
        with client, suppress(ConnectionResetError):
            assert client.recv(1) == b""
        assert server.metrics.connections == 0
    gc.collect()  # an open socket would raise ResourceWarning


def test_an_error_of_a_new_connection_does_not_affect_others(caplog):
    server = PolicyServer(EchoService())
    protocol, faults = server._config.http_protocol_class, iter([RuntimeError("a fault")])

    def made(**arguments):
        for fault in faults:
            raise fault
        return protocol(**arguments)

    server._config.http_protocol_class = made
    with server:
        with pytest.raises((OSError, HTTPException)):
            ask(server, "/v1/health")
        assert ask(server, "/v1/health").status == 200
        until(lambda: server.metrics.connections == 0, "a connection is left")
    assert "could not be made" in caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="apt-get install openssl")
def test_tls(tmp_path):
    key, certificate = certified(tmp_path)
    with serving(certificate=certificate, key=key) as server:
        assert server.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"{server.address}/v1/health", context=context) as answer:
            assert answer.status == 200
        assert b"200 OK" not in answer_to(server, b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    raised(ConfigError, PolicyServer, EchoService(), says="certificate", certificate=key, key=key)
    raised(ConfigError, PolicyServer, EchoService(), says="without a certificate", key=key)
    raised(ConfigError, PolicyServer, EchoService(), says="certificate", certificate=tmp_path / "none.pem")
