"""The lock of a run folder: who is refused, and when it ends."""

import errno
import os
import signal
import subprocess
from contextlib import contextmanager, suppress

import pytest

from rollax.errors import ConfigError
from rollax.runs.run_folder import RunFolder, check_empty
from rollax.runs.run_lock import LOCK_NAME, RunLock, refuse_used
from tests.cli.fake_algorithm import FakeTrainer
from tests.python_process import started

EXPERIMENT = {"run": "PPO", "env": None, "config": {}, "stop": {}}
HOLD = (
    "import os, sys, time; from pathlib import Path; from rollax.runs.run_lock import RunLock\n"
    "lock = RunLock(Path(sys.argv[1]), 'here')\n"
    "if 'forks' not in sys.argv or os.fork() == 0:\n"  # the child speaks once it runs
    "    print('held', flush=True)\n"
    "time.sleep(600)\n"
)


@contextmanager
def held_by_another(folder, *arguments):
    """A process that holds the lock of the folder; it and its children are killed at the end."""
    process = started("-c", HOLD, folder, *arguments, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        with suppress(ProcessLookupError):  # none of them is left
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def refused_for(pid):
    return pytest.raises(ConfigError, match=rf"process {pid} on (.|\n)*since \d{{4}}-")


def test_a_folder_in_use_is_refused_until_its_process_is_killed(tmp_path):
    with held_by_another(tmp_path) as process:
        with refused_for(process.pid) as raised:
            RunLock(tmp_path, "--out")
        assert "-c" in raised.value.parts["got"]  # its command
        with refused_for(process.pid):
            FakeTrainer({}).fit({"training_iteration": 1}, tmp_path, progress="none")
        with refused_for(process.pid):
            RunFolder(tmp_path, EXPERIMENT, None, None, continues_after=3)
        assert os.listdir(tmp_path) == [LOCK_NAME]
        process.kill()
        process.wait()
        assert os.listdir(tmp_path) == [LOCK_NAME]
        FakeTrainer({}).fit({"training_iteration": 1}, tmp_path, progress="none")
    assert LOCK_NAME not in os.listdir(tmp_path)


def test_a_forked_process_does_not_hold_the_lock(tmp_path):
    with held_by_another(tmp_path, "forks") as process:
        with refused_for(process.pid):
            RunLock(tmp_path, "--out")
        process.kill()
        process.wait()
        RunLock(tmp_path, "--out").release()


def test_two_runs_of_one_process_exclude_each_other(tmp_path):
    class SecondFit(FakeTrainer):
        def train(self):
            with refused_for(os.getpid()):
                FakeTrainer({}).fit({"training_iteration": 1}, tmp_path / "run", progress="none")
            return super().train()

    SecondFit({}).fit({"training_iteration": 2}, tmp_path / "run", progress="none")
    assert len((tmp_path / "run" / "result.jsonl").read_text().splitlines()) == 2


def test_a_lock_can_be_released_and_taken_again(tmp_path):
    for _ in range(2):
        with RunLock(tmp_path / "new" / "run", "--out") as lock:
            with refused_for(os.getpid()):
                refuse_used(tmp_path / "new" / "run", "--out")
            with refused_for(os.getpid()):
                check_empty(tmp_path / "new" / "run", "--out", "")
        lock.release()
        check_empty(tmp_path / "new" / "run", "--out", "")
        assert os.listdir(lock.folder) == []


def test_a_file_that_was_removed_before_it_was_locked_is_no_lock(tmp_path, monkeypatch):
    from rollax.runs import run_lock

    calls = []

    def flock(descriptor, kind):
        calls.append(descriptor)
        if len(calls) == 1:  # its owner ends between the opening and the locking
            os.unlink(tmp_path / LOCK_NAME)

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    with RunLock(tmp_path, "--out"):
        assert (tmp_path / LOCK_NAME).exists()
    assert len(calls) == 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_logged(number, tmp_path, monkeypatch, caplog):
    from rollax.runs import run_lock

    def flock(descriptor, kind):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    FakeTrainer({}).fit({"training_iteration": 1}, tmp_path / "run", progress="none")
    assert str(tmp_path / "run") in caplog.text


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_NAME).symlink_to(tmp_path / "notes")
    with pytest.raises(ConfigError, match="cannot be"):
        RunLock(tmp_path / "run", "--out")
    assert (tmp_path / "notes").read_text() == "mine"
