"""`EnvHost`, which runs in the process of a remote sub-environment, called in this process."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rollax import EnvContext, EnvError, MultiAgentEnv, SpaceError
from rollax.env import registry
from rollax.env.copies import EnvCopies, Spaces
from rollax.env.registrations import Registrations
from rollax.env.registry import env_creator
from rollax.env.remote import remote_base_env
from rollax.env.remote.env_host import EnvFacts, EnvHost
from rollax.env.remote.remote_base_env import RemoteBaseEnv, RemoteSubEnvironment
from rollax.processes.actors import LocalActors
from tests.env.jax.worlds import JaxClock
from tests.env.multi_agent.pettingzoo_worlds import Dance, Queue
from tests.env.old_worlds import OldClock
from tests.env.refused import refused
from tests.env.remote.fragile import RAISE, Fragile
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, Clock, DictParties, ListVector, Party


def host_of(cls, event_log, **config) -> EnvHost:
    return EnvHost(3, lambda index: cls(EnvContext({"event_log": event_log, **config}, vector_index=index)))


def test_facts():
    assert EnvHost(0, lambda index: Clock()).make() == EnvFacts("Clock", False, OBS_SPACE, ACTION_SPACE)
    party = EnvFacts("Party", True, OBS_SPACE, ACTION_SPACE, possible_agents="abcd")
    assert EnvHost(0, lambda index: Party()).make() == party
    old = EnvHost(0, lambda index: OldClock())
    assert old.make() == EnvFacts("OldClock", False, OBS_SPACE, ACTION_SPACE)
    assert old.look_up("seed_to_come") == ("value", None)
    assert old.look_up("seed") == ("method", None)
    assert old.call("seed", (5,), {}) is None
    assert old.look_up("seed_to_come") == ("value", 5)


@pytest.fixture(autouse=True)
def hosts_in_this_process(monkeypatch):
    local = lambda copies, *_: LocalActors(lambda index, restarts: EnvHost(index, copies.make_one))  # noqa: E731
    monkeypatch.setattr(remote_base_env, "ray_envs", local)


def proxy_of(env):
    return RemoteBaseEnv(EnvCopies((), lambda index: env, 1)).get_sub_environments()[0]


def test_attributes_that_are_environments_are_proxies():
    """A pickled copy of `unwrapped` could be changed without an effect on the environment."""
    wrapped = gym.wrappers.TimeLimit(Clock(), 9)
    proxy = proxy_of(wrapped)
    assert isinstance(proxy.unwrapped, RemoteSubEnvironment)
    proxy.unwrapped.level = 3
    assert (proxy.env.unwrapped.level, wrapped.unwrapped.level) == (3, 3)
    proxy.unwrapped.reset(seed=1)
    assert (proxy.unwrapped.count, hasattr(proxy.unwrapped, "no_such_thing")) == (0, False)


def test_proxies_have_no_attributes_of_their_own():
    env = Clock()
    proxy = proxy_of(env)
    env._envs, env._index, env._path = 1, 2, 3
    proxy._index += 5
    assert (proxy._envs, proxy._index, proxy._path, env._index) == (1, 7, 3, 7)
    assert copy.copy(proxy)._index == 7


@pytest.mark.parametrize("cls", [Dance, Queue])
@pytest.mark.parametrize(("render_mode", "drawn"), [(None, None), ("rgb_array", "picture")])
def test_frames_of_environments_of_pettingzoo(cls, render_mode, drawn):
    class Drawn(cls):
        def render(self):
            return "picture"

    Drawn.render_mode = render_mode
    host = EnvHost(0, lambda index: Drawn())
    host.make()
    assert host.render() == drawn


class Unspaced(Clock):
    observation_space = None


class AgentsWithoutSpaces(MultiAgentEnv):
    """Declares no spaces: its policies do."""


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda index: ListVector(2), EnvError, "The environment cannot be a remote sub-environment"),
        (lambda index: SyncVectorEnv([Clock] * 2), EnvError, "The environment cannot be a remote sub-environment"),
        (lambda index: DictParties(2), EnvError, "The environment cannot be a remote sub-environment"),
        (lambda index: JaxClock(), EnvError, "The environment cannot be a remote sub-environment"),
        (lambda index: 5, EnvError, "This is not an environment."),
        (lambda index: Unspaced(), SpaceError, "This is not a Gymnasium space...Unspaced, sub-environment 3"),
        (lambda index: 1 / 0, EnvError, "raised ZeroDivisionError in its creator"),
    ],
)
def test_environments_that_cannot_be_remote(make, error, says):
    assert type(refused(error, EnvHost(3, make).make, says=says)) is error


def test_spaces():
    declared = EnvHost(0, lambda index: Unspaced(), declared=Spaces(OBS_SPACE)).make()
    assert declared.observation_space == OBS_SPACE
    assert EnvHost(0, lambda index: AgentsWithoutSpaces()).make().observation_space is None
    others = EnvFacts("Clock", False, gym.spaces.Box(0, 1, (2,)), ACTION_SPACE)
    refused(SpaceError, EnvHost(0, lambda index: Clock()).make, expected=others, says="different spaces")


def test_errors_of_the_environment_have_the_action_and_the_cause(event_log):
    host = host_of(Fragile, event_log)
    host.make()
    obs, _ = host.reset(5)
    assert obs[1] == 3
    caught = refused(EnvError, host.step, RAISE, says="Fragile, sub-environment 3...action 1; the traceback above")
    assert str(caught.__cause__) == "a door fell off"


def test_the_old_environment_is_closed_before_another_is_made(event_log):
    host = host_of(Fragile, event_log, bad_makes=1)
    host.make()
    refused(EnvError, host.make, says="RuntimeError in its creator: no license")
    assert event_log.count("closed", 3) == 1
    host.make()
    np.testing.assert_array_equal(host.reset(7)[0], host.reset(7)[0])
    host.close()
    assert event_log.count("closed", 3) == 2


def test_an_existing_env_is_used_once(event_log):
    first = Clock()
    host = EnvHost(0, lambda index: Clock(), existing=first)
    host.make()
    assert host._env is first
    host.make()
    assert host._env is not first


def test_registrations_of_another_process_are_adopted():
    spec = gym.spec("CartPole-v1")
    creators = {"elsewhere": pickle.dumps(Clock), "of a missing module": b"cno_such_module\nMyEnv\n."}
    specs = {"rollax-tests/Other-v0": pickle.dumps(spec), "CartPole-v1": pickle.dumps(None)}
    try:
        EnvHost(0, lambda index: None, registered=Registrations(creators, specs, {}))
        assert gym.spec("rollax-tests/Other-v0") == spec
        assert gym.spec("CartPole-v1") is spec
        assert "of a missing module" not in registry.registered_envs()
        assert env_creator("elsewhere") is Clock
    finally:
        del gym.registry["rollax-tests/Other-v0"], registry._creators["elsewhere"]


class Lingering(MultiAgentEnv):
    """Its agent ends at the first step; the episode of sub-environment 0 only at the second, without any agent."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def __init__(self, index):
        self.lingers = index == 0

    def reset(self, *, seed=None, options=None):
        return {"a": np.zeros(3, np.float32)}, {}

    def step(self, actions):
        if not actions:
            return {}, {}, {"__all__": True}, {"__all__": False}, {}
        obs = {"a": np.ones(3, np.float32)}
        return obs, {"a": 1.0}, {"a": True, "__all__": not self.lingers}, {"__all__": False}, {}


def test_an_end_without_agents_is_not_lost_beside_a_reset():
    env = RemoteBaseEnv(EnvCopies((), Lingering, 2))
    assert env.reset_rows(np.arange(2)) is None
    rows = env.poll_rows()
    env.send_rows(rows, None, np.zeros(2, np.int64))
    assert env.poll_rows().ended_envs.tolist() == [1]
    assert env.reset_rows(np.array([1])) is None
    rows = env.poll_rows()
    assert (rows.env_index.tolist(), rows.starts.tolist(), rows.ended_envs.tolist()) == ([1], [True], [0])


def test_an_environment_may_write_into_its_action_though_arrays_from_ray_are_read_only():
    class Writes(Party):
        def step(self, actions):
            actions["a"] -= 1
            self.written = actions
            return {}, {}, {}, {}, {}

    host, sent = EnvHost(0, lambda index: Writes()), np.array([2, 1])
    host.make()
    sent.flags.writeable = False
    host.step({"a": sent, "b": 4})
    written = host.look_up("written")[1]
    assert (written["a"].tolist(), written["b"], sent.tolist()) == ([1, 0], 4, [2, 1])
