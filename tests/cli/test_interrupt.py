"""Signals to a real process: the saved files, the output, and the exit code."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rollax.core.storage import newest, read_manifest
from rollax.runs.interrupts import Interrupted, StopRequest, no_lost_interrupts
from tests.python_process import started

SIGNALS = [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)]
each_signal = pytest.mark.parametrize(("number", "code"), SIGNALS)


def start(cwd: Path, **config: object) -> subprocess.Popen[str]:
    command = ("-m", "rollax", "train", "--import=tests.cli.register_fake", "--run=FAKE", "--env=F", "--out=run")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return started(*command, f"--config={json.dumps(config)}", cwd=cwd, **streams)


def wait_for_iteration(process: subprocess.Popen[str], number: int = 1) -> None:
    assert process.stdout is not None
    for n in range(1, number + 1):
        assert process.stdout.readline().startswith(f"iteration {n}")


@each_signal
def test_a_signal_saves_and_ends(tmp_path, number, code):
    process = start(tmp_path, pause=0.05)
    wait_for_iteration(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Stopping after this iteration" in err
    assert "Traceback" not in err
    assert "Ended:            interrupted" in out
    # An interrupted run is not evaluated, so that it ends soon.
    assert "Greedy episodes" not in out
    iterations = len((tmp_path / "run" / "result.jsonl").read_text().splitlines())
    checkpoint = newest(tmp_path / "run" / "checkpoints", "checkpoint_")
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint_{iterations:06d}"
    assert read_manifest(checkpoint)
    assert f"Checkpoint:       run/checkpoints/{checkpoint.name}" in out
    assert (tmp_path / "run" / "curve.png").exists()


@each_signal
def test_a_second_signal_ends_at_once(tmp_path, number, code):
    # After the second result, all imports are done: some libraries swallow signals during their import.
    process = start(tmp_path, hangs_at=3)
    wait_for_iteration(process, 2)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(number)
    said = ""
    while "Stopping after this iteration" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in said + err
    assert "Training was aborted." in err
    assert "Checkpoint:       none was saved" in err


class RaisesInDel:
    """Gets Ctrl-C in `__del__`, where Python drops the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_a_dropped_interrupt_is_raised_again():
    def interrupted():
        RaisesInDel()
        time.sleep(60)

    # A process in the background of a shell without job control ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), no_lost_interrupts():
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_second_signal_raises():
    announced = []
    before = signal.getsignal(signal.SIGINT)
    with StopRequest(lambda: announced.append(1)) as request:
        assert request.signal is None
        signal.raise_signal(signal.SIGTERM)
        assert announced == [1]
        assert request.signal == signal.SIGTERM
        with pytest.raises(Interrupted) as raised:
            signal.raise_signal(signal.SIGINT)
        assert raised.value.number == signal.SIGINT
    assert announced == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_c_code_is_kept(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as if a program that embeds Python had set it
    with StopRequest():
        assert signal.signal(signal.SIGTERM, before) == before
