"""Fixtures of the tests of environments that fail."""

import pytest

from rollax import EnvContext
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.registry import env_creator
from tests.env.remote.fragile import Fragile

LOCKSTEP = 1e9


@pytest.fixture(params=["in this process", pytest.param("remote", marks=pytest.mark.long)])
def remote(request):
    """Whether each sub-environment has a process of its own."""
    if request.param == "remote":
        request.getfixturevalue("small_ray")
    return request.param == "remote"


@pytest.fixture
def make(event_log):
    """Makes sub-environments as a worker does, and stops them."""
    made = []

    def make_one(cls=Fragile, num_envs=3, *, remote=False, wait_ms=LOCKSTEP, restart=False, config=None, **settings):
        context = EnvContext({"event_log": event_log, **(config or {})})
        settings |= {"remote_envs": remote, "restart_failed_sub_environments": restart}
        settings |= {"remote_env_batch_wait_ms": wait_ms} if remote else {}
        made.append(make_base_env(env_creator(cls), context, num_envs, EnvSettings(**settings)))
        return made[-1]

    yield make_one
    for env in made:
        env.stop()
