"""`rollax zoo` with a small entry of its own, and with those that are shipped."""

import json

import pytest

from rollax.cli.console import new_folder
from rollax.cli.zoo import _newest_run, _run_name
from rollax.zoo import entries, read_entry
from tests.cli.command_line import invoke
from tests.cli.fake_algorithm import FakeTrainer
from tests.zoo.small import TEXT, write_small


@pytest.fixture
def small(cwd, without_drawing):
    return write_small(cwd)


def test_list_chooses_entries():
    assert len(invoke("zoo", "list").output.splitlines()) == 1 + len(entries())
    of_ppo = invoke("zoo", "list", "--algo=ppo", "--env=cartpole", "--tag=classic").output.splitlines()
    assert [line.split()[:2] for line in of_ppo[1:]] == [["CartPole-v1", "PPO"]]
    assert "classic" in invoke("zoo", "list", "--tag=chess", code=2).output


def test_show_has_settings_and_figures():
    entry = next(entry for entry in entries() if entry.name == "ppo_cartpole")
    output = invoke("zoo", "show", "CartPole-v1", "--algo=PPO").output
    assert "gamma: 0.98" in output
    assert all(result.weights in output for result in entry.figures.seeds)
    assert "rollax zoo measure ppo_cartpole.yaml" in output


@pytest.mark.parametrize("name", ["a2c_small-2", "a2c small (1)"])
def test_the_newest_run_is_of_the_entry_with_this_name(small, name, cwd):
    entries = [read_entry(small), read_entry(small.rename(cwd / f"{name}.yaml"))]
    folders = [new_folder(_run_name(entry)) for entry in entries]
    for folder in folders:
        FakeTrainer({}).fit({"training_iteration": 1}, folder, progress="none", loggers=())
    assert [_newest_run(entry) for entry in entries] == folders


@pytest.mark.long
def test_train_passes_options_on_and_play_finds_the_run(small, cwd):
    assert f"zoo train {small}" in invoke("zoo", "play", small, code=2).output
    invoke("zoo", "train", small, "--seed=3", "--stop-iterations=1", "--set", "lr=0.01", "--quiet")
    (run,) = (cwd / "runs").glob("zoo-a2c_small-*")
    experiment = json.loads((run / "config.json").read_text())
    assert (experiment["run"], experiment["config"]["seed"], experiment["config"]["lr"]) == ("A2C", 3, 0.01)
    assert experiment["config"]["train_batch_size"] == 200
    assert experiment["stop"] == {"training_iteration": 1}
    invoke("zoo", "train", small, "--seed=4", "--stop-iterations=1", "--quiet", "--out=runs/elsewhere")
    played = invoke("zoo", "play", small, "--episodes=2").output
    assert f"run runs/{run.name}\n" in played
    assert "over 2 (" in played
    assert "over 1 (" in invoke("zoo", "play", small, "--episodes=1", "--run=runs/elsewhere").output


@pytest.mark.long
def test_code_that_a_file_names_requires_trust(cwd, without_drawing):
    text = TEXT.replace("env: CartPole-v1", "env: tests.zoo.test_entries:made")
    wrapped = "config:\n  env_wrappers: ['tests.zoo.test_entries:no_wrapper']\n"
    entry = write_small(cwd, text.replace("config:\n", wrapped))
    for name, option in (("train", "--stop-iterations=1"), ("play", "--episodes=2"), ("measure", "--seeds=2")):
        command = ("zoo", name, entry, option)
        assert "--trust-code" in invoke(*command, code=2).output
        invoke(*command, "--trust-code")
    assert len(read_entry(entry, trust_code=True).figures.seeds) == 2


@pytest.mark.parametrize("option", ["--env=Acrobot-v1", "--run=PPO", "-fother.yaml", "--resume=runs/one"])
def test_train_refuses_what_the_entry_has(small, cwd, option):
    invoke("zoo", "train", small, option, code=2)
    assert not (cwd / "runs").exists()


def test_an_unknown_option_of_train_is_refused(small):
    assert "--stop-timesteps" in invoke("zoo", "train", small, "--total-timesteps=5", code=2).output


def test_a_refused_run_leaves_no_folder(small, cwd):
    assert "gamma" in invoke("zoo", "train", small, "--set", "gama=1", code=2).output
    assert list((cwd / "runs").iterdir()) == []


@pytest.mark.long
def test_measure_and_verify(small):
    assert "rollax zoo measure" in invoke("zoo", "verify", small, code=2).output
    invoke("zoo", "measure", small, "--seeds=2")
    assert "Bit for bit the same" in invoke("zoo", "verify", small).output
    whole = invoke("zoo", "verify", small, "--whole", "--seeds=1").output
    assert "Bit for bit the same" in whole
    assert "inside of the interval" in whole
    entry = read_entry(small)
    seeds = []
    for result in entry.figures.seeds:
        first = result.first.model_copy(update={"reward": 400.0})
        seeds.append(result.model_copy(update={"weights": "0" * 32, "score": 400.0, "first": first}))
    entry.with_measured(entry.figures.model_copy(update={"seeds": tuple(seeds)}))
    outside = invoke("zoo", "verify", small, "--whole", "--seeds=1", code=1).output
    assert "outside of the interval" in outside
