"""Fixtures of the tests of policy servers."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from rollax import PolicyClient
from rollax.rollout.policy_runner import PolicyRunner
from tests.serving.fake_server import FakeServer, over_http, over_websocket
from tests.serving.served_policies import CONTINUOUS, LSTM, runner


@pytest.fixture(scope="module")
def recurrent() -> PolicyRunner:
    return runner(action_space=CONTINUOUS, normalize_actions=True, model=LSTM)


@pytest.fixture(scope="module")
def plain() -> PolicyRunner:
    return runner()


@pytest.fixture(params=[over_http, over_websocket], ids=["http", "ws"])
def over(request: pytest.FixtureRequest) -> Any:
    """How a fake server is reached."""
    return request.param


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(over: Any, fake: FakeServer) -> Iterator[PolicyClient]:
    """A client of the fake server."""
    with over(fake) as address, PolicyClient(address) as connected:
        yield connected


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Runs tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
