"""Fixtures of the tests of policy servers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from rollax.rollout.policy_runner import PolicyRunner
from tests.serving.served_policies import CONTINUOUS, LSTM, runner


@pytest.fixture(scope="module")
def recurrent() -> PolicyRunner:
    return runner(action_space=CONTINUOUS, normalize_actions=True, model=LSTM)


@pytest.fixture(scope="module")
def plain() -> PolicyRunner:
    return runner()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Runs tests that are coroutines."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True
