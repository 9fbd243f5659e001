"""Fixtures: asynchronous optimizers with stand-ins."""

import pytest

from rollax import AsyncReplayOptimizer
from rollax.optimizers import async_replay
from rollax.processes.failure_rules import FailureRules
from rollax.rollout.remote_workers import RemoteWorkers
from tests.optimizers.replay_stand_ins import SMALL, FailingShards, RowActors, RowWorker
from tests.optimizers.stand_ins import learner_threads


@pytest.fixture
def make(monkeypatch):
    """Makes optimizers with so many workers and with shards in this process, and stops them at the end."""
    monkeypatch.setattr(async_replay, "shard_actors", lambda settings, remote: FailingShards(settings))
    made = []

    def make_one(count=2, *, seed=0, fails=None, agents=None, **settings):
        processes = RowActors(seed, fails)
        remote = RemoteWorkers(processes, count, FailureRules(restart=True))
        made.append(AsyncReplayOptimizer(RowWorker(0, **(agents or {})), remote, {**SMALL, **settings}))
        return made[-1], processes

    yield make_one
    for optimizer in made:
        optimizer.stop()
    assert not learner_threads()
