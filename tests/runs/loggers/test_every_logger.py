"""What every logger must do: all of it is read back, with several at once, and after a run was continued."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollax.runs.loggers.table import make_loggers
from tests.cli.fake_algorithm import FakeTrainer
from tests.marks import long_except
from tests.runs.loggers import reading

# Iteration n of the fake algorithm has the reward 10·n, none in iteration 1, and the greedy rewards 20·n + (0, 1, 2).
REWARDS = [(200, 20.0), (300, 30.0)]
KL = [(100, 0.5), (200, 0.5), (300, 0.5)]
GREEDY = [(300, 61.0)]


def store(folder: Path) -> str:
    return f"sqlite:///{folder.parent / 'mlflow.db'}"


def spec(name: str, folder: Path):
    """The logger, in its offline mode if it has a server."""
    settings = {"wandb": {"mode": "offline", "project": "tests"}, "mlflow": {"tracking_uri": store(folder)}}
    return {name: settings[name]} if name in settings else name


def id_of(folder: Path) -> str:
    (found,) = json.loads((folder / "loggers.json").read_text()).values()
    return found


def read(name: str, *folders: Path) -> reading.Numbers:
    """What a logger recorded, where the last folder continues the runs of the others."""
    if name == "wandb":
        return reading.wandb(*folders)
    if name == "mlflow":
        return reading.mlflow(store(folders[-1]), id_of(folders[-1]))
    readers = {"tensorboard": reading.tensorboard, "csv": reading.from_csv, "jsonl": reading.from_json_lines}
    return readers[name](folders[-1])


@pytest.fixture(params=long_except({"tensorboard", "csv", "jsonl"}, ["tensorboard", "csv", "jsonl", "wandb", "mlflow"]))
def name(request, monkeypatch, tmp_path):
    if request.param in ("wandb", "mlflow"):
        pytest.importorskip(request.param, reason=f"pip install 'rollax[{request.param}]'")
    monkeypatch.chdir(tmp_path)  # MLflow's artifacts are in the current folder
    monkeypatch.setenv("WANDB_SILENT", "true")
    return request.param


@pytest.mark.short("tensorboard", "csv")
def test_what_a_run_logs_is_read_back_and_a_continued_run_adds_to_it(name, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    trainer = FakeTrainer({})
    trainer.fit({"training_iteration": 3}, one, progress="none", loggers=[spec(name, one)])
    found = read(name, one)
    assert found["episode_reward_mean"] == REWARDS
    assert found["info/learner/default_policy/kl"] == KL
    assert found["evaluation/episode_reward_mean"] == GREEDY
    assert "info/learner/default_policy/total_loss" not in found  # infinite

    trainer.fit({"training_iteration": 4}, two, progress="none", evaluate=False, loggers=[spec(name, two)])
    found = read(name, one, two)
    assert found["episode_reward_mean"] == [*REWARDS, (400, 40.0)]
    assert found["info/learner/default_policy/kl"] == [*KL, (400, 0.5)]
    assert found["evaluation/episode_reward_mean"] == GREEDY
    if name in ("wandb", "mlflow"):
        assert id_of(one) == id_of(two)


def test_a_run_that_continues_within_a_second_loses_no_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorboardX.event_file_writer.time", SimpleNamespace(time=lambda: 1.5e9))
    trainer = FakeTrainer({})
    for iterations in (2, 3):
        trainer.fit({"training_iteration": iterations}, tmp_path / "run", progress="none", evaluate=False)
    assert read("tensorboard", tmp_path / "run")["episode_reward_mean"] == REWARDS


def test_a_logger_may_log_several_runs(name, tmp_path):
    (logger,) = make_loggers([spec(name, tmp_path / "one")], "loggers", trusted=True)
    for folder in (tmp_path / "one", tmp_path / "two"):
        FakeTrainer({}).fit({"training_iteration": 3}, folder, progress="none", loggers=[logger])
        assert read(name, folder)["episode_reward_mean"] == REWARDS


@pytest.mark.short("csv")
def test_a_logger_that_joins_a_continued_run_gets_the_earlier_results_too(name, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    trainer = FakeTrainer({})
    trainer.fit({"training_iteration": 3}, one, progress="none", evaluate=False, loggers=[])
    trainer.fit({"training_iteration": 4}, two, progress="none", evaluate=False, loggers=[spec(name, two)])
    assert read(name, two)["episode_reward_mean"] == [*REWARDS, (400, 40.0)]
