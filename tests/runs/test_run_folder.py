"""Run folders: continuing that of a killed process, a full disk, and a TensorBoard log without PyTorch."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollax.errors import RollaxError
from rollax.runs.results import read_lines
from rollax.runs.run_folder import RunFolder

REPOSITORY = Path(__file__).resolve().parents[2]
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
        monkeypatch.chdir("logs")  # as some environments do
        folder.append({"timesteps_total": 100, "episode_reward_mean": 1.0})
        folder.log_scalars({"timesteps_total": 100, "episode_reward_mean": 1.0})
    assert not any((tmp_path / "logs").iterdir())
    assert (tmp_path / "run" / "curve.png").exists()
    assert list((tmp_path / "run").glob("events.out.tfevents*"))


def test_a_full_disk_is_an_error(tmp_path):
    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    folder = RunFolder(tmp_path, EXPERIMENT, None, None)
    folder._results.close()
    folder._results = io.BufferedWriter(Full())
    with pytest.raises(RollaxError, match=r"result\.jsonl\n.*No space left on device"), folder:
        folder.append({"training_iteration": 1})


@pytest.mark.parametrize("file", ["config.json", "result.jsonl.new"])
def test_a_disk_too_full_to_begin_is_an_error(tmp_path, file):
    (tmp_path / "result.jsonl").write_text(line(1))
    (tmp_path / file).symlink_to("/dev/full")
    with pytest.raises(RollaxError, match=rf"{file}\n.*No space left on device"):
        RunFolder(tmp_path, EXPERIMENT, None, None, continues_after=1)


def test_no_file_stays_open_after_an_error_at_the_start(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(RollaxError, match="config.json"):
        RunFolder(tmp_path, EXPERIMENT, None, None, continues_after=0)
    assert not (tmp_path / "result.jsonl").exists()  # the only file that stays open during a run


def test_a_disk_too_full_for_the_tensorboard_log_is_an_error(tmp_path):
    result = {"training_iteration": 1, "timesteps_total": 100, "loss": 0.5}
    with open("/dev/full", "wb", buffering=0) as full, RunFolder(tmp_path, EXPERIMENT, None, None) as folder:
        folder.log_scalars(result)
        assert folder._events is not None
        records = folder._events._writer._py_recordio_writer
        records.close()
        records._writer = full
        with pytest.raises(RollaxError, match=r"events\.out(.|\n)*No space left on device"):
            folder.log_scalars(result)


def test_the_tensorboard_log_does_not_load_pytorch(tmp_path):
    # A run in JAX does not need it, and loading it takes 2 s and 200 MB.
    script = (
        "import sys; from pathlib import Path; from rollax.runs.run_folder import RunFolder\n"
        "with RunFolder(Path('run'), dict(run='PPO', env=None, config={}, stop={}), None, None) as folder:\n"
        "    folder.log_scalars({'timesteps_total': 100, 'loss': 0.5})\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run").glob("events.out.tfevents*"))
