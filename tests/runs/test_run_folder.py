"""Run folders: continuing that of a killed process, a full disk, and a TensorBoard log without PyTorch."""

import json
import os
import resource
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rollax.errors import CheckpointError, ConfigError, RollaxError
from rollax.runs.loggers.tensorboard import TensorBoardLogger
from rollax.runs.results import read_lines
from rollax.runs.run_folder import RunFolder, check_empty
from rollax.runs.run_lock import LOCK_NAME, RunLock
from tests.cli.fake_algorithm import FakeTrainer
from tests.env.refused import raised, refused
from tests.python_process import output_of

EXPERIMENT = {"run": "PPO", "env": None, "config": {}, "stop": {}}


def line(iteration):
    return json.dumps({"training_iteration": iteration}) + "\n"


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        ("", []),  # the process was killed in the first iteration
        (line(1)[:9], []),  # as it wrote the first line
        (line(1) + line(2) + line(3)[:9], [1, 2]),
        (line(1) + line(2) + line(3), [1, 2]),  # the checkpoint is that of iteration 2
    ],
)
def test_later_and_unfinished_results_are_dropped(tmp_path, left, kept):
    (tmp_path / "result.jsonl").write_text(left)
    folder = RunFolder(tmp_path, EXPERIMENT, None, None, continues_after=2)
    with folder:
        folder.append({"training_iteration": 3})
    results, unread = read_lines(tmp_path / "result.jsonl")
    assert [result["training_iteration"] for result in results] == [*kept, 3]
    assert unread == 0


def test_the_folder_does_not_depend_on_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    with RunFolder(Path("run"), EXPERIMENT, None, None) as folder:
        folder.begin_logging([TensorBoardLogger()])
        monkeypatch.chdir("logs")  # as some environments do
        folder.append({"timesteps_total": 100, "episode_reward_mean": 1.0})
        folder.log({"timesteps_total": 100, "episode_reward_mean": 1.0})
    assert not any((tmp_path / "logs").iterdir())
    assert (tmp_path / "run" / "curve.png").exists()
    assert list((tmp_path / "run").glob("events.out.tfevents*"))


@contextmanager
def longest_file(size):
    """Writes beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("file", "size"), [("result.jsonl", 10), ("config.json", 40)])
def test_a_disk_too_full_to_begin_is_an_error(tmp_path, file, size):
    (tmp_path / "result.jsonl").write_text(line(1))  # 27 bytes, and the config has more than 40
    with longest_file(size), pytest.raises(RollaxError, match=rf"{file}\n.*File too large"):
        RunFolder(tmp_path, EXPERIMENT, None, None, continues_after=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.jsonl"]  # neither the lock nor a part of a file
    assert read_lines(tmp_path / "result.jsonl") == ([{"training_iteration": 1}], 0)


def test_a_disk_too_full_for_a_result_is_an_error(tmp_path):
    full = pytest.raises(RollaxError, match=r"result\.jsonl\n.*File too large")
    with RunFolder(tmp_path, EXPERIMENT, None, None) as folder, longest_file(10), full:
        folder.append({"training_iteration": 1})


def test_a_disk_too_full_for_the_final_evaluation_keeps_the_last_result(tmp_path):
    with RunFolder(tmp_path, EXPERIMENT, None, None) as folder:
        folder.append({"training_iteration": 1})  # 26 bytes and the end of the line
        with longest_file(40), pytest.raises(RollaxError, match=r"result\.jsonl\n.*File too large"):
            folder.amend({"training_iteration": 1, "evaluation": {"episodes": 10}})
        assert (tmp_path / "result.jsonl").read_text() == line(1)
        folder.amend({"training_iteration": 1, "evaluation": None})
        folder.append({"training_iteration": 2})
    results, _ = read_lines(tmp_path / "result.jsonl")
    assert results == [{"training_iteration": 1, "evaluation": None}, {"training_iteration": 2}]


@pytest.mark.long
def test_trainers_in_jax_and_the_tensorboard_log_do_not_load_pytorch(tmp_path):
    # A run in JAX does not need it, and loading it takes 2 s and 200 MB.
    script = (
        "from rollax import PPOTrainer, load_policy\n"
        "import sys; from pathlib import Path; from rollax.runs.run_folder import RunFolder\n"
        "from rollax.runs.loggers.tensorboard import TensorBoardLogger\n"
        "with RunFolder(Path('run'), dict(run='PPO', env=None, config={}, stop={}), None, None) as folder:\n"
        "    folder.begin_logging([TensorBoardLogger()])\n"
        "    folder.log({'timesteps_total': 100, 'loss': 0.5})\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
    )
    output_of("-c", script, cwd=tmp_path)
    assert list((tmp_path / "run").glob("events.out.tfevents*"))


@pytest.mark.parametrize("name", ["config.json", "result.jsonl", "checkpoints", "best", "curve.png", "loggers.json"])
@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_links_in_a_run_folder(tmp_path, name, exists):
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    if exists:
        outside.write_text("mine")
    (run / name).symlink_to(outside)
    refused(ConfigError, RunFolder, run, EXPERIMENT, None, None, says=f"{name} -> {outside}", continues_after=2)
    assert not outside.exists() if not exists else outside.read_text() == "mine"
    assert not (run / LOCK_NAME).exists()


@pytest.mark.parametrize("name", ["config.json", "result.jsonl"])
def test_a_file_with_another_name_outside_stays_as_it_is(tmp_path, name):
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    outside.write_text(line(1) + line(3))
    os.link(outside, run / name)
    with RunFolder(run, EXPERIMENT, None, None, continues_after=2) as folder:
        folder.append({"training_iteration": 3})
    assert outside.read_text() == line(1) + line(3)


class TestPipesAndDevices:
    """Files of a folder from elsewhere that cannot be read to an end."""

    def test_results(self, tmp_path):
        os.mkfifo(tmp_path / "result.jsonl")
        refused(RollaxError, read_lines, tmp_path / "result.jsonl", says="not a regular file")
        refused(RollaxError, read_lines, Path("/dev/zero"), says="not a regular file")

    @pytest.mark.long
    def test_results_that_are_too_long(self, tmp_path):
        (tmp_path / "result.jsonl").touch()
        os.truncate(tmp_path / "result.jsonl", 1 << 40)
        refused(RollaxError, read_lines, tmp_path / "result.jsonl", says="more than")

    def test_the_lock(self, tmp_path):
        os.mkfifo(tmp_path / LOCK_NAME)
        check_empty(tmp_path, "here", "this")  # a lock that nobody holds


@pytest.mark.parametrize("moved", [False, True], ids=["removed", "renamed"])
@pytest.mark.parametrize("replaced", [False, True], ids=["nothing there", "another run there"])
def test_a_run_writes_nothing_into_a_folder_that_it_has_lost(tmp_path, moved, replaced):
    path, trainer = tmp_path / "run", FakeTrainer({})
    first = RunFolder(path, EXPERIMENT, "episode_reward_mean", 1)
    first.append(trainer.train())
    first.save(trainer)
    if moved:
        path.rename(tmp_path / "moved")
    else:
        shutil.rmtree(path)
    second = RunFolder(path, EXPERIMENT, None, None) if replaced else None
    result = trainer.train()
    raised(RollaxError, first.append, result, says="removed or replaced")
    raised(RollaxError, first.save, trainer, says="removed or replaced")
    raised(RollaxError, first.keep_best, trainer, result, saved=True, says="removed or replaced")
    first.__exit__()
    if second is None:
        assert not path.exists()
        return
    assert sorted(os.listdir(path)) == ["config.json", "result.jsonl", LOCK_NAME]
    refused(ConfigError, check_empty, path, "here", "", says="Another run")
    with second:
        second.append(result)
    assert read_lines(path / "result.jsonl")[0][0]["training_iteration"] == 2


class Unreadable:
    """A value whose text cannot be made."""

    def __repr__(self):
        raise PermissionError("not for the disk")


class UntoldError(OSError):
    def __str__(self):
        raise ZeroDivisionError


def test_errors_of_values_are_not_described_as_errors_of_the_disk(tmp_path):
    with RunFolder(tmp_path, EXPERIMENT, None, None) as folder:
        raised(PermissionError, folder.append, {"training_iteration": 1, "own": Unreadable()}, says="not for the disk")


def test_an_error_of_saving_may_have_no_message(tmp_path):
    trainer = FakeTrainer({})

    def save(directory):
        raise UntoldError

    trainer.save = save
    with RunFolder(tmp_path, EXPERIMENT, None, None) as folder:
        raised(CheckpointError, folder.save, trainer, says="not saved...ZeroDivisionError")


def test_no_part_of_a_curve_remains(tmp_path, monkeypatch, capsys):
    def fails(runs, out, title):
        out.write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rollax.runs.run_folder.draw_curves", fails)
    with RunFolder(tmp_path, EXPERIMENT, None, None) as folder:
        folder.append(FakeTrainer({}).train())
    said = capsys.readouterr().err
    assert "The learning curve was not drawn" in said
    assert "No space left" in said
    assert not (tmp_path / "curve.png").exists()


def test_a_disk_that_is_full_for_the_curve_and_its_warning_leaves_no_lock(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, EXPERIMENT, None, None)
    with folder:
        folder.append(FakeTrainer({}).train())
        (tmp_path / "curve.png").mkdir()  # it cannot be drawn
        with open("/dev/full", "w", buffering=1) as full:
            monkeypatch.setattr(sys, "stderr", full)
            folder.__exit__()
            monkeypatch.undo()
            with suppress(OSError):
                full.close()
    RunLock(tmp_path, "here").release()
