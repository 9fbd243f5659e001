"""The C# client, compiled and run with Mono."""

from __future__ import annotations

import pytest

from tests.serving.fake_server import FakeServer, over_http, over_websocket
from tests.serving.programs import CLIENTS, HERE, output_of, required

pytestmark = pytest.mark.long

# .NET Framework, Unity and all newer compilers accept C# 6.
COMPILE = ("mcs", "-langversion:6", "-warnaserror", "-r:System.Net.Http.dll")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    required("mcs", "mono", install="apt-get install mono-mcs mono-runtime libmono-system-net-http4.0-cil")
    path = tmp_path_factory.mktemp("csharp") / "Checks.exe"
    output_of(*COMPILE, f"-out:{path}", CLIENTS / "RollaxClient.cs", HERE / "CSharpClient.cs")
    return path


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_the_client_in_mono(program, scheme):
    fake = FakeServer(token="secret")
    with over_http(fake) as http, over_websocket(fake) as ws:
        address = {"http": http, "ws": ws}[scheme]
        printed = output_of("mono", program, address, "secret", http)
    assert printed.count("ok: ") == 10
