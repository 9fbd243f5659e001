"""The JavaScript client, in Node, and the C# client, compiled and run with Mono."""

import pytest

from tests.serving.fake_server import FakeServer, over_http, over_websocket
from tests.serving.programs import CLIENTS, HERE, node, output_of, required

pytestmark = pytest.mark.long

# .NET Framework, Unity and all newer compilers accept C# 6.
COMPILE = ("mcs", "-langversion:6", "-warnaserror", "-r:System.Net.Http.dll")


@pytest.fixture(params=["http", "ws"])
def arguments(request):
    """The arguments of a program that checks its client: the address, the token, and the address over HTTP."""
    fake = FakeServer(token="secret")
    with over_http(fake) as http, over_websocket(fake) as ws:
        yield {"http": http, "ws": ws}[request.param], "secret", http


def test_the_client_in_node(arguments):
    assert node(HERE / "javascript_client.mjs", CLIENTS / "rollax.js", *arguments).count("ok: ") == 13


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    required("mcs", "mono", install="apt-get install mono-mcs mono-runtime libmono-system-net-http4.0-cil")
    path = tmp_path_factory.mktemp("csharp") / "Checks.exe"
    output_of(*COMPILE, f"-out:{path}", CLIENTS / "RollaxClient.cs", HERE / "CSharpClient.cs")
    return path


def test_the_client_in_mono(program, arguments):
    assert output_of("mono", program, *arguments).count("ok: ") == 10
