"""The files that a study reads and writes: experiments with a search, and the best settings."""

import json
import re

import pytest

from rollax import ConfigError
from rollax.core.plain_yaml import read_yaml
from rollax.runs.experiment import read_experiment
from rollax.tune import run_study
from rollax.tune.settings import BEST, EXPERIMENT, Options, settings_of
from rollax.zoo import read_entry
from tests.tune.fake import FakeTrainer

FILE = """
run: PPO
env: CartPole-v1
preset: rllib
config:
  num_envs_per_worker: 4
  model: {fcnet_hiddens: [32], fcnet_activation: relu}
stop: {timesteps_total: 5000, episode_reward_mean: 475}
search:
  lr: {log: [1e-5, 1e-2]}
  model.fcnet_hiddens: {choice: [[16], [32, 32]]}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cartpole.yaml"
    path.write_text(FILE)
    return path


def settings(run, env=None, config=None, stop=None, search=None, *, trust_code=False):
    return settings_of(run, env, config or {}, stop or {}, search, Options(), trust_code=trust_code)


def test_arguments_replace_keys_of_the_file(file):
    found = settings(file, "Acrobot-v1", {"model": {"fcnet_hiddens": [8]}}, {"training_iteration": 7})
    assert found.env == "Acrobot-v1"
    assert found.config["model"] == {"fcnet_hiddens": [8], "fcnet_activation": "relu"}
    assert found.config["train_batch_size"] == 4000  # of the preset
    assert found.stop == {"timesteps_total": 5000, "episode_reward_mean": 475, "training_iteration": 7}
    assert found.task.stop == {"timesteps_total": 5000, "training_iteration": 7}
    assert list(found.space) == ["lr", "model.fcnet_hiddens"]
    more = settings(file, search={"lr": {"choice": [1e-3, 1e-2]}, "gamma": {"uniform": [0.9, 1]}})
    kinds = {key: list(words.in_words()) for key, words in more.space.items()}
    assert kinds == {"lr": ["choice"], "model.fcnet_hiddens": ["choice"], "gamma": ["uniform"]}


def test_without_a_search_there_is_a_default_space():
    assert "clip_param" in settings("PPO", "CartPole-v1", stop={"timesteps_total": 1000}).space
    assert "tau" in settings("sac", "Pendulum-v1", stop={"timesteps_total": 1000}).space


def test_the_config_of_a_run_is_searched_without_its_other_keys(tmp_path):
    path = tmp_path / "config.json"
    config = {"lr": 0.1, "lambda": 0.9, "given": ["lambda_"]}
    path.write_text(json.dumps({"run": "PPO", "env": "CartPole-v1", "config": config, "stop": {"timesteps_total": 10}}))
    assert settings(path).config == {"lambda": 0.9}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("run: PPO", "env"),
        ("env: CartPole-v1\nstop: {timesteps_total: 9}", "run"),
        ("run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 9}\nconfig: {seed: 3}", "seed"),
        ("run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 9}\nsearch: {lr: 3}", "search: lr"),
        ("run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 9}\nsearch: [lr]", "search"),
        ("run: PPO\nenv: CartPole-v1\nstop: {timesteps_total: 9}\nserch: {lr: {log: [1, 2]}}", "serch"),
    ],
)
def test_mistakes_in_a_file_are_refused(tmp_path, text, named):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        settings(path)


def test_code_in_a_search_needs_trust(tmp_path):
    path = tmp_path / "study.yaml"
    search = "search: {callbacks: {choice: [null, 'tests.tune.fake:FakeTrainer']}}"
    path.write_text(f"run: PPO\nenv: CartPole-v1\nstop: {{timesteps_total: 9}}\n{search}")
    with pytest.raises(ConfigError, match="tests.tune.fake:FakeTrainer"):
        settings(path)
    assert settings(path, trust_code=True).space["callbacks"].value_of(None) is None
    assert FakeTrainer in settings(path, trust_code=True).space["callbacks"].examples()


def test_a_stored_study_has_the_same_settings(file, tmp_path, search):
    space = {
        "lr": {"log": [1e-5, 1e-1]},
        "gamma": {"uniform": [0, 1], "step": 0.1},
        "train_batch_size": {"int": [100, 400], "log": True},
        "num_envs_per_worker": {"int": [1, 8], "step": 3},
        "model.fcnet_hiddens": {"choice": [[64, 64], [32]]},
        "observation_filter": {"choice": ["NoFilter", "MeanStdFilter"]},
    }
    first = search("study", trials=3, search=space)
    again = run_study(tmp_path / "study", trials=3, show=lambda line: None)
    assert again.settings == first.settings
    assert again.trials == first.trials


class Small:
    pass


class Large:
    pass


def test_a_stored_study_of_classes_goes_on(search, tmp_path):
    classes = {"choice": [Small, Large]}
    first = search("study", trials=3, search={"model.custom_model": classes, "callbacks": classes})
    again = run_study(tmp_path / "study", trials=4, trust_code=True, show=lambda line: None)
    assert [trial.scores for trial in again.trials[:3]] == [trial.scores for trial in first.trials]
    before, after = ([trial.values["callbacks"] for trial in study.trials[:3]] for study in (first, again))
    assert after == before


def test_the_best_file_is_an_experiment_and_an_entry_of_the_zoo(search, tmp_path):
    space = {"lr": {"choice": [1e-4, 1e-3]}, "model.fcnet_hiddens": {"choice": [[8], [16, 16]]}}
    study = search("study", sampler="grid", search=space)
    path = tmp_path / "study" / BEST
    assert study.best_file == path
    experiment = read_experiment(path)
    assert (experiment.run, experiment.env, experiment.stop) == ("FAKE", "CartPole-v1", {"timesteps_total": 1000})
    # Its score is 10, of lr 1e-3; of equal trials the first is the best.
    assert experiment.config["lr"] == 1e-3
    assert experiment.config["model"] == {"fcnet_hiddens": [8]}
    assert "seed" not in experiment.config
    entry = read_entry(path)
    assert (entry.about.tags, entry.about.target, entry.measured) == (("classic",), 10, None)
    comment = path.read_text().partition("run:")[0]
    assert all(part in comment for part in ("4 trials", "10 greedy episodes", "1000"))
    assert "search" in read_yaml(tmp_path / "study" / EXPERIMENT)


CODE = {"callbacks": {"choice": ["rollax:Callbacks", ["rollax:Callbacks"]]}}


@pytest.mark.parametrize(("space", "trust"), [({"lr": {"choice": [1e-4, 1e-3]}}, ""), (CODE, " --trust-code")])
def test_the_command_in_the_best_file_trusts_code_that_the_file_names(search, space, trust):
    study = search("study", trials=1, search=space)
    (command,) = re.findall(r"`(rollax zoo measure .*)`", study.best_file.read_text())
    assert command == f"rollax zoo measure {BEST}{trust}"


def test_the_best_file_may_be_searched_again(search, tmp_path):
    study = search("study", trials=2)
    assert settings(study.best_file).config["lr"] == study.best.values["lr"]
