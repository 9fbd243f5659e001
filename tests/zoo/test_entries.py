"""The files of entries: those that are shipped, and mistakes in one."""

import re
import shlex

import gymnasium as gym
import pytest

from rollax import zoo
from rollax.algorithms.registry import get_trainer_class
from rollax.config import resolve_config
from rollax.errors import ConfigError
from rollax.zoo import read_entry
from rollax.zoo.entry import INSTALLED
from tests.env.refused import raised, refused
from tests.learning_curves import SEEDS
from tests.python_process import output_of
from tests.zoo.small import TEXT, write_small

TAGS = {"classic", "box2d", "mujoco", "minigrid", "atari", "pettingzoo", "jax", "torch"}
each_entry = pytest.mark.parametrize("entry", zoo.entries(), ids=lambda entry: entry.name)


@each_entry
def test_shipped_entries_are_valid(entry):
    trainer_class = get_trainer_class(entry.algorithm)
    config = resolve_config(trainer_class.config_class, {**entry.config, "env": entry.env})
    assert entry.algorithm == trainer_class.name
    assert config.evaluation_interval is not None
    assert set(entry.about.tags) <= TAGS


@each_entry
def test_shipped_entries_are_measured(entry):
    figures = entry.figures  # raises if the settings have changed since
    assert [result.seed for result in figures.seeds] == list(SEEDS)
    assert figures.best >= entry.about.target
    limit = entry.experiment.stop["timesteps_total"]
    for result in figures.seeds:
        steps = [steps for steps, _ in result.curve]
        assert steps == sorted(steps)
        assert steps[-1] <= result.steps
        assert limit <= result.steps <= 1.05 * limit
        assert result.weights != result.first.weights or result.first.steps == result.steps


def test_code_in_a_file_requires_trust(tmp_path):
    wrapped = "config:\n  env_wrappers: ['tests.zoo.test_entries:no_wrapper']\n  callbacks: ['rollax:Callbacks']\n"
    text = TEXT.replace("env: CartPole-v1", "env: tests.zoo.test_entries:made").replace("config:\n", wrapped)
    path = write_small(tmp_path, text)
    entry, trusted = read_entry(path), zoo.load(str(path), trust_code=True)
    assert entry.env == trusted.env == "tests.zoo.test_entries:made"
    assert entry.settings == trusted.settings
    raised(ConfigError, entry.make_trainer, says="was not imported", seed=0)
    with trusted.make_trainer(seed=0) as trainer:
        assert trainer.train()["episode_reward_mean"] > 0


def made(context):
    return gym.make("CartPole-v1", **context)


def no_wrapper(env):
    return env


def test_one_entry_for_each_pair():
    pairs = [(entry.env, entry.algorithm) for entry in zoo.entries()]
    assert len(set(pairs)) == len(pairs) == len(list(INSTALLED.iterdir()))


def test_an_entry_is_found_by_its_names(tmp_path):
    entry = zoo.load("cartpole-V1", "ppo")
    assert (entry.env, entry.algorithm, entry.name) == ("CartPole-v1", "PPO", "ppo_cartpole")
    path = write_small(tmp_path)
    assert zoo.load(str(path)) == read_entry(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [(("CartPole-v2", "PPO"), "CartPole-v1"), (("CartPole-v1",), "--algo"), (("CartPole-v1", "PPOO"), "PPO")],
)
def test_names_without_an_entry(names, message):
    refused(ConfigError, zoo.load, *names, says=message)


def without(section):
    return "\n\n".join(part for part in TEXT.split("\n\n") if not part.startswith(section))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (without("zoo"), "zoo"),
        (without("stop"), "stop"),
        (TEXT.replace("target: 10", "target: high"), "zoo.target"),
        (TEXT.replace("  tags: [classic]\n", ""), "zoo.tags"),
        (TEXT.replace("tags: [classic]", "tags: []"), "zoo.tags"),
        (TEXT + "  goal: 5\n", "zoo.goal"),
        (TEXT.replace("config:\n", "config:\n  seed: 1\n"), "config.seed"),
        (TEXT + "\npreset: rllib\n", "preset"),
        (TEXT + "\nmeasured: {episodes: 3}\n", "measured"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, text, place):
    refused(ConfigError, read_entry, write_small(tmp_path, text), says=place)


def test_an_entry_is_a_yaml_file(tmp_path):
    refused(ConfigError, read_entry, write_small(tmp_path).rename(tmp_path / "a2c_small.json"))


def test_the_error_about_an_entry_that_was_not_measured_has_a_command_with_its_file(tmp_path):
    entry = read_entry(write_small(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(f"measure {shlex.quote(str(entry.path))}")):
        _ = entry.figures


def test_scores_of_other_settings_are_refused(tmp_path):
    text = (INSTALLED / "ppo_cartpole.yaml").read_text()
    with pytest.raises(ConfigError, match="rollax zoo measure"):
        _ = read_entry(write_small(tmp_path, text.replace("gamma: 0.98", "gamma: 0.97"))).figures
    with pytest.raises(ConfigError):
        _ = read_entry(write_small(tmp_path)).figures


def test_a_section_after_the_measured_one_is_not_dropped(tmp_path):
    text = (INSTALLED / "ppo_cartpole.yaml").read_text()
    entry = read_entry(write_small(tmp_path, f"{text}\nloggers:\n"))
    refused(ConfigError, entry.with_measured, entry.figures, says="loggers")


def test_hashes_do_not_depend_on_the_order_of_keys(tmp_path):
    text = TEXT.replace("run: A2C\nenv: CartPole-v1", "env: CartPole-v1\nrun: A2C")
    assert read_entry(write_small(tmp_path, text)).settings == read_entry(write_small(tmp_path)).settings
    other = TEXT.replace("train_batch_size: 200", "train_batch_size: 201")
    assert read_entry(write_small(tmp_path, other)).settings != read_entry(write_small(tmp_path, text)).settings


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo_cartpole", "ppo_acrobot", "pqn_cartpole"])
def test_first_parts_are_reproduced(name, monkeypatch):
    """In processes without the flags of the tests, which change what is compiled."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    entry = next(entry for entry in zoo.entries() if entry.name == name)
    output_of("-m", "rollax", "zoo", "verify", entry.env, f"--algo={entry.algorithm}", "--seeds=2")
