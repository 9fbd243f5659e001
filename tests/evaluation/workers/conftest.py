"""What the tests of the pool of workers share."""

from __future__ import annotations

import pytest

from rollax.evaluation.workers import remote_workers
from rollax.evaluation.workers.failures import FailureRules
from rollax.evaluation.workers.remote_workers import RemoteWorkers
from tests.evaluation.workers.stand_in import Clock, StandIn

RESTART = FailureRules(restart=True, delay_s=2.0)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(remote_workers, "time", made)
    return made


@pytest.fixture
def pool(clock):
    """A pool of stand-ins, and the stand-ins."""

    def make(count=2, rules=RESTART, script=None, *, made_on_request=False):
        stand_in = StandIn(clock, script)
        return RemoteWorkers(stand_in, count, rules, made_on_request=made_on_request), stand_in

    return make
