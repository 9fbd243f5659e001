"""An empty current folder, and a command line with the fake algorithm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from rollax.algorithms.registry import ALGORITHMS
from rollax.runs import run_folder
from tests.cli.command_line import invoke
from tests.cli.fake_algorithm import FakeTrainer, open_fake
from tests.pages import REPOSITORY

Command = Callable[..., Result]


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes learning curves empty files, as drawing takes longer than the rest of a small run."""

    def draw(runs: Any, out: Path, title: str = "") -> None:
        out.touch()

    monkeypatch.setattr(run_folder, "draw_curves", draw)


@pytest.fixture
def in_processes(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder, for runs in processes of their own with this checkout.

    What `--import=tests.cli.register_fake` changes in this process, too, is restored after the test.
    """
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setitem(ALGORITHMS, "FAKE", f"{FakeTrainer.__module__}:FakeTrainer")
    monkeypatch.setattr("rollax.cli.training.open_trainer", open_fake)
    return cwd


@pytest.fixture
def rollax(cwd: Path, without_drawing: None, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in the empty folder, with the algorithm FAKE, which opens all checkpoints."""

    monkeypatch.setitem(ALGORITHMS, "FAKE", f"{FakeTrainer.__module__}:FakeTrainer")
    monkeypatch.setattr("rollax.cli.training.open_trainer", open_fake)
    monkeypatch.setattr("rollax.cli.commands.open_trainer", open_fake)

    def run(*arguments: Any, code: int = 0) -> Result:
        words = [str(argument) for argument in arguments]
        names_env = any(word.startswith(("--env", "-f", "--resume")) for word in words)
        env = ["--env=Fake-v0"] if "--run=FAKE" in words and not names_env else []
        return invoke(*words, *env, code=code)

    return run


@pytest.fixture
def lines() -> Callable[[Path], list[dict[str, Any]]]:
    """Reads the result lines of a run folder, refusing what is not strict JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    def read(run: Path) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=refuse) for line in (run / "result.jsonl").read_text().splitlines()]

    return read
