"""Fixtures of the tests of policy servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollax.rollout.policy_runner import PolicyRunner
from tests.serving.served_policies import CONTINUOUS, LSTM, runner
from tests.serving.service_session import Session
from tests.serving.stand_in_backend import StandIn


@pytest.fixture
def serve():
    """Runs a test's coroutine with a service, which is closed in any case."""

    def run(play: Any, backend: StandIn | None = None, **limits: Any) -> Session:
        async def main() -> Session:
            session = Session(backend or StandIn(), **limits)
            try:
                await play(session)
            finally:
                session.service.close()
            return session

        return asyncio.run(main())

    return run


@pytest.fixture(scope="module")
def recurrent() -> PolicyRunner:
    return runner(action_space=CONTINUOUS, normalize_actions=True, model=LSTM)


@pytest.fixture(scope="module")
def plain() -> PolicyRunner:
    return runner()
