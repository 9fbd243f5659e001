"""Remote sub-environments that die, hang or raise."""

import functools
import logging
import os
import signal

import numpy as np
import pytest

from rollax import EnvError, record_env
from rollax.env.restarting import EnvFailures
from rollax.env.rows import Rows
from tests.env.refused import refused
from tests.env.remote import fragile
from tests.env.remote.fragile import DIE, END, GO_ON, HANG, RAISE, Fragile, FragileParty, act

pytestmark = pytest.mark.usefixtures("small_ray")
BOTH = pytest.mark.parametrize("cls", [Fragile, FragileParty])


@pytest.fixture
def make_remote(make):
    return functools.partial(make, remote=True)


@pytest.mark.long
@BOTH
def test_a_dead_one_is_recreated_and_the_others_continue(make_remote, event_log, cls, caplog):
    env = make_remote(cls, 2)
    rows = act(env, env.reset_rows(np.arange(2), [7, 8]))
    assert not len(rows.dropped_envs)
    rows = act(env, rows, {0: DIE})
    assert rows.dropped_envs.tolist() == [0]
    assert {*rows.env_index.tolist()} == {1}
    assert not len(rows.ended_envs)
    started = env.reset_rows(rows.dropped_envs)
    assert {*started.env_index.tolist()} == {0}
    assert {obs[0] for obs in started.obs} == {0}
    both = act(env, Rows.concat(rows, started))
    assert [int(obs[0]) for obs in both.obs[:: len(both) // 2]] == [1, 3]  # the number of steps since the reset
    assert event_log.count("made", 0) == 2
    assert event_log.count("made") == 3
    assert "Sub-environment 0 failed" in caplog.text
    assert "The process of a sub-environment is gone" in caplog.text


class DiesDrawing(Fragile):
    """Its first process ends as it draws its third frame."""

    render_mode = "rgb_array"

    def render(self):
        if self.count == 2 and self.event_log.count("made", self.index) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((8, 8, 3), np.uint8)


@pytest.mark.long
def test_an_episode_is_lost_if_its_process_dies_while_drawing(make_remote, event_log, tmp_path):
    env = make_remote(record_env(DiesDrawing, tmp_path / "videos", episodes=lambda episode: True), 1)
    rows = act(env, env.reset_rows(np.arange(1)))
    rows = act(env, act(env, rows))
    assert rows.dropped_envs.tolist() == [0]
    rows = act(env, env.reset_rows(rows.dropped_envs), {0: END})
    assert rows.ended_envs.tolist() == [0]
    assert [path.name for path in env.paths] == ["episode_000000.mp4"]  # the next one has its number


@pytest.mark.long
def test_a_hanging_one_counts_as_dead(make_remote, caplog, monkeypatch):
    env = make_remote(num_envs=2, remote_env_timeout_s=15.0)
    rows = act(env, env.reset_rows(np.arange(2)), {0: HANG})
    assert rows.dropped_envs.tolist() == [0]
    assert rows.env_index.tolist() == [1]
    assert "expected: an answer within 15 s" in caplog.text
    assert f"where:    sub-environment 0, step({HANG}), in step() ({fragile.__file__}, line " in caplog.text
    assert env.reset_rows(rows.dropped_envs).obs[0, 0] == 0
    # Without waiting, it delays no other sub-environment.
    monkeypatch.setattr(env, "_wait_s", 0.0)
    env.reset_rows(np.arange(2))
    polls, dropped = 0, False
    while not dropped:
        rows = env.poll_rows()
        dropped = rows.dropped_envs.tolist() == [0]
        polls += 1
        acting = np.flatnonzero(rows.acts)
        env.send_rows(rows, acting, np.where(rows.env_index[acting] == 0, HANG, GO_ON))
    assert polls > 3  # with waiting there would be 2 polls
    assert env.reset_rows(np.array([0])) is None


@pytest.mark.long
def test_an_error_is_raised_with_its_traceback(make_remote):
    env = make_remote(num_envs=1, config={"bad_resets": 1})
    refused(EnvError, env.reset_rows, np.arange(1), says="ValueError in reset...no level...sub-environment 0")
    rows = env.reset_rows(np.arange(1))
    caught = refused(EnvError, act, env, rows, {0: RAISE}, says="ValueError in step...: a door fell off")
    assert "Fragile, sub-environment 0" in str(caught)
    assert "fragile.py" in str(caught.__cause__)
    assert 'raise ValueError("a door fell off")' in str(caught.__cause__)


@pytest.mark.long
def test_a_failed_reset_is_repeated(make_remote, event_log):
    env = make_remote(num_envs=1, config={"bad_resets": 2}, restart=True)
    assert env.reset_rows(np.arange(1), [5]).obs[0, 0] == 0
    assert event_log.count("made") == 3
    assert event_log.count("reset", 0, 5) == 3
    env.stop()
    other = make_remote(num_envs=1, wait_ms=0, config={"bad_resets": 5}, restart=True)
    assert other.reset_rows(np.arange(1), [5]) is None
    rows = other.poll_rows()
    assert rows.starts.tolist() == [True]
    assert not len(rows.dropped_envs)


@pytest.mark.long
def test_the_others_are_polled_while_it_is_recreated(make_remote, caplog, monkeypatch):
    """The pause before another attempt delays no other sub-environment."""
    monkeypatch.setattr(EnvFailures, "FIRST_PAUSE_S", 3.0)
    caplog.set_level(logging.CRITICAL)
    env = make_remote(num_envs=2, wait_ms=0, restart=True)
    env.reset_rows(np.arange(2))
    dropped, starts, between = 0, 0, 0
    while starts < 3:
        rows = env.poll_rows()
        dropped += len(rows.dropped_envs)
        starts += int(rows.starts[rows.env_index == 0].sum())
        between += dropped == 2 and starts == 2
        acting = np.flatnonzero(rows.acts)
        env.send_rows(rows, acting, np.where(rows.env_index[acting] == 0, RAISE, GO_ON))
        if len(rows.dropped_envs):
            env.reset_rows(rows.dropped_envs)
    assert dropped == 2
    assert between > 20


@pytest.mark.long
def test_stop_ends_processes_that_do_not_answer(make_remote, event_log, monkeypatch):
    monkeypatch.setattr("rollax.processes.actor_pool._STOP_S", 0.2)
    env = make_remote(num_envs=2, wait_ms=0)
    env.reset_rows(np.arange(2))
    asked = set()
    while asked != {0, 1}:
        rows = env.poll_rows()
        asked |= {*rows.env_index[rows.env_index == 0].tolist()} | ({1} if 0 in asked else set())
        env.send_rows(rows, None, np.where(rows.env_index == 0, HANG, GO_ON))
    env.stop()
    env.stop()
    assert event_log.count("closed", 0) == 0
    assert event_log.count("closed", 1) == 1
