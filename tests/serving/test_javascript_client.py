"""The JavaScript client, in Node."""

from __future__ import annotations

import pytest

from tests.serving.fake_server import FakeServer, over_http, over_websocket
from tests.serving.programs import CLIENTS, HERE, node

pytestmark = pytest.mark.long


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_the_client_in_node(scheme):
    fake = FakeServer(token="secret")
    with over_http(fake) as http, over_websocket(fake) as ws:
        address = {"http": http, "ws": ws}[scheme]
        printed = node(HERE / "javascript_client.mjs", CLIENTS / "rollax.js", address, "secret", http)
    assert printed.count("ok: ") == 13
