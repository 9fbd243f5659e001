"""`rollax tune` with the fake algorithm, and once with PPO."""

import json
import re
import shlex
import sys

import pytest

from rollax.algorithms.registry import ALGORITHMS
from rollax.runs.experiment import read_experiment
from rollax.zoo import read_entry
from tests.cli.command_line import invoke
from tests.tune.fake import FakeTrainer

PPO = """
run: PPO
env: CartPole-v1
config:
  train_batch_size: 32
  num_sgd_iter: 1
  model: {fcnet_hiddens: [4]}
  evaluation_num_episodes: 1
stop:
  timesteps_total: 64
search:
  lr: {choice: [1e-3, 1e-2]}
  sgd_minibatch_size: {choice: [16, 64]}
"""


@pytest.fixture
def fake(cwd, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "FAKE", f"{FakeTrainer.__module__}:FakeTrainer")
    monkeypatch.setattr(FakeTrainer, "made", 0)
    return cwd


def test_a_study_without_a_file(fake):
    options = ("--search", "lr={choice: [1e-3, 1e-2]}", "--set", "gamma=0.9", "--sampler=grid", "--stop-timesteps=1000")
    output = invoke("tune", "fake", "CartPole-v1", *options).output
    (folder,) = (fake / "runs").iterdir()
    best = read_experiment(folder / "best.yaml")
    assert (best.run, best.env, best.config) == ("FAKE", "CartPole-v1", {"gamma": 0.9, "lr": 1e-3})
    assert re.search(r"\| 0 +\| 10 +\| 0.001 +\|", output)  # trial, score, lr
    assert f"--resume {folder.relative_to(fake)}" in output


def test_commands_trust_code_that_the_files_name(fake):
    for study in ("study", "my study"):
        output = invoke("tune", "FAKE", "my_envs:Maze", "--stop-iterations=5", f"--study={study}", "--trials=1").output
        folder, file = shlex.quote(study), shlex.quote(f"{study}/best.yaml")
        for command in (f"train -f {file}", f"zoo measure {file}", f"tune --resume {folder}"):
            assert f"{command} --trust-code" in output


def test_the_same_command_and_resume_go_on(fake):
    command = ("tune", "FAKE", "CartPole-v1", "--stop-iterations=5", "--study=study", "--sampler=random", "--quiet")
    invoke(*command, "--trials=2")
    invoke(*command, "--trials=3")
    invoke("tune", "--resume=study", "--trials=4", "--jobs=1")
    assert FakeTrainer.made == 4
    assert "other settings" in invoke(*command, "--seeds=2", code=2).output


def test_after_a_signal_the_study_goes_on(fake):
    command = ("tune", "FAKE", "CartPole-v1", "--stop-iterations=5", "--study=study", "--trials=3")
    assert "--resume study" in invoke(*command, "--set=env_config.kill=2", code=130).output
    assert (fake / "study" / "best.yaml").exists()
    invoke("tune", "--resume=study", "--trials=3")
    assert FakeTrainer.made == 4  # the second trial twice


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "rollax tune PPO"),
        (("FAKE", "--resume=x"), "--resume"),
        (("--resume=x",), "no study"),
        (("FAKE",), "env"),
        (("FAKE", "CartPole-v1"), "--stop-timesteps"),
        (("PPOO", "CartPole-v1", "--stop-timesteps=9"), "'PPO'"),
        (("missing.yaml",), "missing.yaml"),
        (("FAKE", "CartPole-v1", "--stop-timesteps=9", "--search=lr=3"), "distribution"),
        (("FAKE", "CartPole-v1", "--stop-timesteps=9", "--gamma=0.9"), "--set"),
        (("FAKE", "CartPole-v1", "--stop-timesteps=9", "--sampler=best"), "tpe"),
    ],
)
def test_mistakes(fake, arguments, named):
    assert named in invoke("tune", *arguments, code=2).output
    assert not (fake / "runs").exists() or not list((fake / "runs").iterdir())


def test_without_optuna_the_error_has_the_extra(fake, monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("rollax.tune.study", "rollax.tune.record"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "optuna", None)
    output = invoke("tune", "FAKE", "CartPole-v1", "--stop-timesteps=9", code=2).output
    assert "pip install 'rollax[tune]'" in output


@pytest.fixture
def study(cwd, without_drawing):
    """Searches with PPO, and returns the best settings and the output."""
    (cwd / "ppo.yaml").write_text(PPO)
    output = invoke("tune", "ppo.yaml", "--evaluations=2", "--sampler=grid").output
    (folder,) = (cwd / "runs").iterdir()
    return folder / "best.yaml", output


@pytest.mark.long
def test_the_best_settings_of_ppo_are_trained(study, cwd):
    best, output = study
    # A minibatch of 64 rows is larger than the batch, which fails its trials only.
    assert "sgd_minibatch_size is larger" in output
    invoke("train", "-f", best, "--out=run", "--seed=3", "--quiet")
    config = json.loads((cwd / "run" / "config.json").read_text())["config"]
    assert config["lr"] == read_experiment(best).config["lr"]


@pytest.mark.long
def test_the_best_settings_of_ppo_are_measured(study):
    best, _ = study
    invoke("zoo", "measure", best, "--seeds=2")
    assert len(read_entry(best).figures.seeds) == 2
