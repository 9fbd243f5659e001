"""Remote sub-environments: the contract of every kind of environment, and what is special to them."""

import os
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import pytest

from rollax import BaseEnv, ConfigError, EnvContext, EnvError, SpaceError, record_env, to_base_env
from rollax.env.action_repeat import ActionRepeat
from rollax.env.frame_stack import FrameStack
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.registry import env_creator
from rollax.env.remote.remote_base_env import RemoteSubEnvironment
from rollax.processes.cluster import started_ray
from tests.env import test_contract
from tests.env.drive import drive, trace_of
from tests.env.kinds import REMOTE
from tests.env.recording.films import Film
from tests.env.refused import refused
from tests.env.remote.fragile import EventLog, Fragile
from tests.env.test_action_repeat import WORLDS, Repeated
from tests.env.test_contract import seeds_for
from tests.env.test_stacking import stacks_of
from tests.env.worlds import ACTION_SPACE, CLOCK_ID, OBS_SPACE, Clock

pytestmark = pytest.mark.usefixtures("small_ray")
EVERY_KIND = pytest.mark.parametrize("name", REMOTE)
LOCKSTEP = 1e9


@pytest.fixture(scope="module")
def lockstep(small_ray):
    """Two sub-environments of each kind and one of the old interface, in lockstep."""
    envs = {name: kind.make(1 if name == "remote old single" else 2) for name, kind in REMOTE.items()}
    yield envs
    for env in envs.values():
        env.stop()


class Programmable(Fragile):
    """Returns given results; one of its methods waits for a file."""

    def behave(self, results=None, *, waits_in="", for_file=""):
        self.results, self.waits_in, self.for_file = results or {}, waits_in, for_file

    def reset(self, *, seed=None, options=None):
        return self._returned("reset", super().reset(seed=seed))

    def step(self, action):
        return self._returned("step", super().step(action))

    def _returned(self, method, result):
        while method == self.waits_in and not os.path.exists(self.for_file):
            time.sleep(1e-3)
        return self.results.get(method, result)

    def facts(self, *names, key):
        """Facts about its process: the id, which modules are loaded, and an environment variable."""
        return os.getpid(), [name in sys.modules for name in names], os.environ.get(key)


@pytest.fixture(scope="module")
def only_trio(small_ray, tmp_path_factory):
    env = remote(Programmable, 3, 100.0, config={"event_log": EventLog(tmp_path_factory.mktemp("trio") / "event_log")})
    yield env
    env.stop()


@pytest.fixture
def trio(only_trio):
    """Three sub-environments without failures; a poll waits 100 ms for those that are not ready."""
    for sub_env in only_trio.get_sub_environments():
        sub_env.behave()
    return only_trio


def wait(env, seconds, monkeypatch):
    """Sets how long a poll waits for sub-environments that are not ready."""
    monkeypatch.setattr(env, "_wait_s", seconds)


def remote(env, num_envs, wait_ms=0.0, *, config=None, worker_index=2, **settings) -> BaseEnv:
    """Made as a worker makes it."""
    settings |= {"remote_envs": True, "remote_env_batch_wait_ms": wait_ms}
    return make_base_env(
        env_creator(env), EnvContext(config or {}, worker_index=worker_index), num_envs, EnvSettings(**settings)
    )


@pytest.mark.long
@EVERY_KIND
@pytest.mark.parametrize(("view", "split"), [("rows", 1), ("rows", 3), ("dicts", 1)])
def test_episodes_in_lockstep_are_correct(lockstep, name, view, split):
    seeds = seeds_for(lockstep[name].num_envs)
    for trace, seed in zip(drive(lockstep[name], view, 40, seeds, split), seeds, strict=True):
        assert len(trace) > 20
        assert any(moment.ended for moment in trace)
        assert trace == REMOTE[name].trace(seed, len(trace))


@pytest.mark.parametrize("name", ["remote", "remote multi-agent"])
def test_stacks_and_repeated_actions(lockstep, name):
    seeds, trace_of_kind = seeds_for(2), REMOTE[name].trace
    for trace, seed in zip(drive(FrameStack(lockstep[name], 2), "rows", 20, seeds), seeds, strict=True):
        assert trace == stacks_of(trace_of_kind(seed, len(trace)), 2)
    for trace, seed in zip(drive(ActionRepeat(lockstep[name], 2), "rows", 20, seeds), seeds, strict=True):
        assert trace == trace_of(Repeated(WORLDS[trace_of_kind](), 2), seed, len(trace))


@EVERY_KIND
def test_in_lockstep_all_step_at_every_poll(lockstep, name):
    env = lockstep[name]
    everyone = range(env.num_envs)
    rows = env.reset_rows(np.arange(env.num_envs), seeds_for(env.num_envs))
    for _ in range(10):
        acting = np.flatnonzero(rows.acts)
        env.send_rows(rows, acting, np.zeros(len(acting), np.int64))
        rows = env.poll_rows()
        assert {*rows.env_index.tolist(), *rows.ended_envs.tolist()} == {*everyone}
        if len(rows.ended_envs):
            rows = type(rows).concat(rows, env.reset_rows(rows.ended_envs))


@pytest.mark.parametrize("name", ["remote", "remote multi-agent"])
def test_episodes_without_waiting_are_correct(lockstep, name, monkeypatch):
    wait(lockstep[name], 0.0, monkeypatch)
    for view in ("rows", "dicts"):
        traces = drive(lockstep[name], view, 80, seeds_for(2), at_least=6)
        for trace, seed in zip(traces, seeds_for(2), strict=True):
            assert trace == REMOTE[name].trace(seed, len(trace))


@pytest.mark.long
@pytest.mark.parametrize("method", ["step", "reset"])
def test_a_slow_sub_environment_delays_no_other_without_waiting(trio, method, monkeypatch, tmp_path):
    wait(trio, 0.0, monkeypatch)
    trio.get_sub_environments()[1].behave(waits_in=method, for_file=str(tmp_path / "go"))
    assert trio.reset_rows(np.arange(3)) is None
    steps = [0, 0, 0]
    while steps[1] == 0:
        rows = trio.poll_rows()
        for index in rows.env_index[~rows.starts].tolist():
            steps[index] += 1
        trio.send_rows(rows, None, np.zeros(len(rows), np.int64))
        if min(steps[0], steps[2]) > 5:
            (tmp_path / "go").touch()
    assert min(steps[0], steps[2]) > 5


@pytest.mark.long
def test_a_poll_waits_no_longer_than_configured(trio, tmp_path):
    """100 ms after the first result: a sub-environment that takes longer is in a later poll."""
    trio.get_sub_environments()[1].behave(waits_in="reset", for_file=str(tmp_path / "go"))
    rows, seen = trio.reset_rows(np.arange(3)), set()
    while 1 not in seen:
        if rows is not None:
            trio.send_rows(rows, None, np.zeros(len(rows), np.int64))
        rows = trio.poll_rows()
        seen |= {*rows.env_index.tolist()}
        if seen == {0, 2}:
            (tmp_path / "go").touch()
    assert seen == {0, 1, 2}


def test_a_reset_during_a_step_discards_the_step(trio, monkeypatch, tmp_path):
    wait(trio, 0.0, monkeypatch)
    trio.get_sub_environments()[0].behave(waits_in="step", for_file=str(tmp_path / "go"))
    trio.reset_rows(np.arange(3), [1, 2, 3])
    firsts, asked = [], False
    while len(firsts) < 2:
        rows = trio.poll_rows()
        started = rows.starts & (rows.env_index == 0)
        if started.any():
            firsts += [rows.obs[started]]
        elif firsts and not asked and not rows.starts.any():
            assert 0 not in rows.env_index
            assert trio.reset_rows(np.array([0]), [1]) is None  # its step is running
            asked = True
            (tmp_path / "go").touch()
        trio.send_rows(rows, None, np.zeros(len(rows), np.int64))
    np.testing.assert_array_equal(*firsts)


def test_one_sub_environment(lockstep):
    """Steps outside of an episode are refused; sub-environment i does not depend on their number."""
    kind = REMOTE["remote"]
    answers = test_contract.TestAnswers()
    env = kind.make(1)
    refused(EnvError, env.poll_rows, says="begun")
    refused(EnvError, env.poll, says="begun")
    (trace,), many = drive(env, "rows", 20, seeds_for(1)), drive(lockstep["remote"], "rows", 20, seeds_for(2))
    shortest = min(len(trace), len(many[0]))
    assert trace[:shortest] == many[0][:shortest]
    assert many[0][:5] != many[1][:5]
    answers.test_step_after_the_end(kind._replace(make=lambda num_envs: env))
    env.stop()


def test_proxies_read_and_set_remote_attributes_and_call_remote_methods(lockstep):
    env = lockstep["remote"]
    assert (env.num_envs, env.observation_space, env.action_space) == (2, OBS_SPACE, ACTION_SPACE)
    env.reset_rows(np.arange(2), seeds_for(2))
    first, second = env.get_sub_environments()
    assert first.count == 0
    assert first.action_space == ACTION_SPACE
    assert second.step(2)[1] == 1.2
    assert [first.count, second.count] == [0, 1]
    second.level = 3
    assert (second.level, hasattr(first, "level")) == (3, False)
    refused(EnvError, lambda: second.no_such_thing, says="sub-environment 1...no_such_thing")
    assert not hasattr(second, "no_such_thing")
    with pytest.raises(AttributeError):
        second._private  # noqa: B018


def test_recorded_environments_run_in_their_own_processes(small_ray, tmp_path):
    base = remote(record_env(Film, tmp_path), 1, LOCKSTEP, worker_index=1)
    assert isinstance(*base.get_sub_environments(), RemoteSubEnvironment)
    rows = base.reset_rows(np.arange(1))
    while not len(rows.ended_envs):
        base.send_rows(rows, None, np.zeros(1, np.int64))
        rows = base.poll_rows()
    base.stop()
    assert (tmp_path / "episode_000000.mp4").exists()


@pytest.mark.parametrize("name", ["remote", "remote multi-agent"])
def test_refused_actions(lockstep, name):
    same = REMOTE[name]._replace(make=lambda num_envs: lockstep[name])
    answers = test_contract.TestAnswers()
    answers.test_missing_action(same)
    answers.test_two_actions_for_one_agent(same)
    answers.test_action_for_an_agent_that_does_not_wait(same)


def test_the_context_has_the_indices(trio):
    contexts = [sub_env.context for sub_env in trio.get_sub_environments()]
    found = [(context.worker_index, context.vector_index, context.remote) for context in contexts]
    assert found == [(2, index, True) for index in range(3)]
    assert contexts[0]["event_log"].count("made") == 3


def test_each_has_a_process_without_jax_and_with_one_thread(trio):
    found = [sub_env.facts("jax", "rollax.rollout", key="OMP_NUM_THREADS") for sub_env in trio.get_sub_environments()]
    assert len({os.getpid(), *(pid for pid, _, _ in found)}) == 4
    assert [facts[1:] for facts in found] == [([False, False], "1")] * 3


def test_ids_registered_in_this_process_only():
    class Local(Clock):
        """Of no module that another process could import."""

        def registered(self, *env_ids):
            return [env_id in gym.registry for env_id in env_ids]

    gym.register("rollax-tests/Local-v0", entry_point=Local, disable_env_checker=True, order_enforce=False)
    gym.register("rollax-tests/Stuck-v0", entry_point=Local, kwargs={"lock": threading.Lock()})
    try:
        env = remote("rollax-tests/Local-v0", 1, LOCKSTEP)
        assert env.reset_rows(np.arange(1), [5]) is not None
        assert env.name == "rollax-tests/Local-v0"
        (sub_env,) = env.get_sub_environments()
        assert sub_env.registered(CLOCK_ID, "rollax-tests/Stuck-v0") == [True, False]
        env.stop()
    finally:
        del gym.registry["rollax-tests/Local-v0"], gym.registry["rollax-tests/Stuck-v0"]


def test_an_existing_env_is_one_of_the_sub_environments(event_log):
    first = Fragile(EnvContext({"event_log": event_log}))
    others = lambda index: Fragile(EnvContext({"event_log": event_log}, vector_index=index))  # noqa: E731
    env = to_base_env(first, others, 2, remote_envs=True, remote_env_batch_wait_ms=LOCKSTEP)
    assert env.reset_rows(np.arange(2)).obs[:, 1].tolist() == [0, 1]
    assert event_log.count("made") == 2
    env.stop()
    assert event_log.count("closed") == 2


def test_pettingzoo_runs_in_actors_too():
    rps = pytest.importorskip("pettingzoo.classic.rps_v2")
    env = to_base_env(None, lambda index: rps.parallel_env(max_cycles=3), 1, True, LOCKSTEP)
    rows = env.reset_rows(np.arange(1), [1])
    assert rows.agents == ["player_0", "player_1"]
    for _ in range(3):
        env.send_rows(rows, None, np.array([0, 1]))
        rows = env.poll_rows()
        assert rows.rewards.tolist() == [-1, 1]
    assert rows.ended_envs.tolist() == [0]
    env.stop()


class WithSpace(Clock):
    """Its observation space depends on the copy."""

    def __init__(self, context):
        super().__init__(context)
        if context.vector_index:
            self.observation_space = gym.spaces.Box(-1, 1, (2,))


class Raising(Clock):
    def __init__(self, context):
        raise OSError(f"no display for {context.vector_index}")


@pytest.mark.long
def test_environments_that_cannot_be_made():
    refused(SpaceError, remote, WithSpace, 2, says="different spaces...WithSpace, sub-environment 1")
    error = refused(EnvError, remote, Raising, 1, says="OSError in its creator: no display for 0")
    assert "tests/env/remote/test_remote.py" in str(error.__cause__)


def test_environments_that_cannot_be_pickled():
    """A lock in the creator or in the environment is refused."""
    lock = threading.Lock()
    refused(ConfigError, remote, lambda context: lock and Clock(), 1, says="cannot be sent...pickle")
    refused(ConfigError, to_base_env, Locked(lock), None, 1, True, says="cannot be sent...pickle")


class Locked(Clock):
    """Cannot be pickled."""

    def __init__(self, lock):
        self.lock = lock


@pytest.mark.parametrize(
    ("method", "value", "says"),
    [
        ("reset", 5, "reset() did not return...sub-environment 1"),
        ("reset", (np.zeros(2, np.float32), {}), "shape...sub-environment 1, reset()"),
        ("step", (1, 2, 3, 4), "step() did not return five...sub-environment 1"),
        ("step", (np.full(3, np.nan, np.float32), 0.0, False, False, {}), "NaN...sub-environment 1, step()"),
        ("step", (np.zeros(3, np.float32), np.inf, False, False, {}), "reward is NaN or infinite...sub-environment 1"),
        ("step", (np.zeros(3, np.float32), 0.0, 1, False, {}), "terminated flag...sub-environment 1"),
        ("step", (np.zeros(3, np.float32), 0.0, False, False, []), "info...sub-environment 1"),
    ],
)
def test_bad_output_is_refused(trio, method, value, says, monkeypatch):
    wait(trio, LOCKSTEP, monkeypatch)
    trio.get_sub_environments()[1].behave({method: value})

    def play():
        trio.send_rows(trio.reset_rows(np.arange(3)), None, np.zeros(3, np.int64))
        trio.poll_rows()

    refused(EnvError, play, says=says)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    says = "requires a package that is not installed...ray...pip install 'rollax[ray]'"
    refused(ConfigError, started_ray, "remote_worker_envs", says=says)
