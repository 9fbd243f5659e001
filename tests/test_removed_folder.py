"""A working directory that was removed: relative paths are refused with an error of the library, absolute ones work."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollax import PPOTrainer, RollaxError, Trainer
from rollax.cli import app
from rollax.core import storage
from rollax.core.importing import ImportPath, import_object
from rollax.offline.new_file import NewFile, check_folder, new_folder
from rollax.runs.display import shown_path
from rollax.runs.results import labelled
from rollax.serving.export.export_policy import export_policy
from tests.env.refused import refused


def enter(path):
    with new_folder(path):
        pass


WRITING = {
    "a saved folder": lambda path: storage.write_directory(path, {}, kind="policy", format_version=1),
    "a file of data": NewFile,
    "a folder to write": check_folder,
    "a new folder": enter,
    "results": lambda path: labelled([Path(path)]),
    "a shown path": lambda path: shown_path(Path(path)),
}


@pytest.fixture
def removed(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    yield
    os.chdir(tmp_path)


@pytest.mark.usefixtures("removed")
@pytest.mark.parametrize("write", WRITING.values(), ids=WRITING)
def test_relative_paths_are_refused(write):
    refused(RollaxError, write, "some/file", says="working directory")


def test_a_trainer_saves_and_runs_to_absolute_paths_only(tmp_path, removed):
    config = {"train_batch_size": 20, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [4]}}
    with PPOTrainer("CartPole-v1", config) as trainer:
        for fails in (
            lambda: trainer.save("saved"),
            lambda: trainer.fit({"training_iteration": 1}, "run", progress="none"),
            lambda: trainer.record(1, "recorded"),
            lambda: export_policy(trainer.save(tmp_path), out="policy.onnx"),
            lambda: PPOTrainer("CartPole-v1", {**config, "output": "written"}),
        ):
            refused(RollaxError, fails, says="working directory")
        with Trainer.from_checkpoint(trainer.save(tmp_path / "saved")) as restored:
            assert restored.iteration == 0


@pytest.mark.usefixtures("removed")
def test_installed_modules_are_still_imported():
    assert import_object(ImportPath("fractions:Fraction"), "here").__name__ == "Fraction"


@pytest.mark.usefixtures("removed")
def test_the_command_line_says_it():
    done = CliRunner().invoke(app, ["list"])
    assert done.exit_code != 0
    assert "working directory" in done.output
