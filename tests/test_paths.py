"""Paths that no file system has: names that are too long, and null characters."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rollax import DQNTrainer, Trainer, load_policy, open_dataset
from rollax.errors import DatasetError, RollaxError
from rollax.offline import reader
from rollax.offline.new_file import new_folder
from rollax.runs.results import labelled
from rollax.runs.run_folder import newest_checkpoint
from tests.env.refused import raised

READ: dict[str, Callable[[str], Any]] = {
    "load_policy": load_policy,
    "from_checkpoint": Trainer.from_checkpoint,
    "open_dataset": open_dataset,
    "input": lambda path: DQNTrainer("CartPole-v1", {"input": path}),
    "a checkpoint on the command line": lambda path: newest_checkpoint(Path(path)),
    "results": lambda path: labelled([Path(path)]),
}
WRITTEN: dict[str, Callable[[DQNTrainer, str], Any]] = {
    "save": lambda trainer, path: trainer.save(path),
    "record": lambda trainer, path: trainer.record(1, path),
    "fit": lambda trainer, path: trainer.fit({"training_iteration": 1}, path),
    "output": lambda trainer, path: DQNTrainer(config=trainer.config.changed(output=path)),
}


@pytest.fixture(scope="module")
def trainer():
    with DQNTrainer("CartPole-v1", {"model": {"fcnet_hiddens": (4,)}}) as trainer:
        yield trainer


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"], ids=["long", "null"])
@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_reading_one_is_a_named_error(read, path):
    raised(RollaxError, read, path)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"], ids=["long", "null"])
@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_writing_one_is_a_named_error(write, path, trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raised(RollaxError, write, trainer, path)
    assert not list(tmp_path.iterdir())


def denied(path: Any = ".") -> Any:
    raise PermissionError(13, "Permission denied", path)


WRITES_DATA = {**WRITTEN, "data": lambda _, path: new_folder(path).__enter__()}


@pytest.mark.parametrize("what", ["fit", "record", "data"])
def test_a_folder_that_cannot_be_listed_is_a_named_error_or_none(what, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "listdir", denied)
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(RollaxError) if what != "record" else nullcontext():
        WRITES_DATA[what](trainer, str(tmp_path))


def test_data_that_may_not_be_read_are_a_named_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_format_of", denied)
    (tmp_path / "a.jsonl").touch()
    for path in (tmp_path, tmp_path / "a.jsonl"):
        raised(DatasetError, open_dataset, path, says="Permission denied")
