"""Pools of stand-ins with a simulated clock, shared by tests of actor pools."""

import pytest

from rollax.processes import actor_pool as actor_pool
from rollax.processes.actor_pool import ActorPool
from rollax.processes.failure_rules import FailureRules, Failures
from rollax.rollout import remote_workers
from rollax.rollout.remote_workers import RemoteWorkers
from tests.processes.stand_in import Clock, StandIn

RESTART = FailureRules(restart=True, delay_s=2.0)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (remote_workers, actor_pool):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def pool(clock):
    """Makes remote workers of stand-ins; returns them and the stand-ins."""

    def make(count=2, rules=RESTART, script=None, *, makes=False):
        stand_in = StandIn(clock, script)
        return RemoteWorkers(stand_in, count, rules, makes=makes), stand_in

    return make


@pytest.fixture
def actor_pool_of(clock):
    """Makes a pool of two stand-ins, from index 0; returns it and the stand-ins."""

    def make(rules=RESTART, script=None, **settings):
        stand_in = StandIn(clock, script)
        return ActorPool(stand_in, range(2), Failures(rules, "stand-in"), **settings), stand_in

    return make
