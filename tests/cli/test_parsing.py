"""Experiment files, and options that override them."""

import json
import subprocess
import sys
from collections import OrderedDict

import pytest

from rollax import A2CConfig, PPOConfig
from rollax.cli.parsing import parse_config, parse_settings
from rollax.cli.training import make_trainer
from rollax.config.json_form import missing_code
from rollax.core.importing import ImportPath, StoredCode
from rollax.errors import ConfigError
from rollax.runs.experiment import Experiment, merged, override, read_experiment
from tests.env.refused import refused


def read(tmp_path, text):
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return read_experiment(path)


def test_reads_all_sections(tmp_path):
    experiment = read(tmp_path, "run: PPO\nenv: CartPole-v1\nconfig:\n  lr: 0.01\nstop:\n  timesteps_total: 100\n")
    assert experiment == Experiment("PPO", "CartPole-v1", {"lr": 0.01}, {"timesteps_total": 100})


def test_an_entry_of_the_zoo_is_an_experiment(tmp_path):
    experiment = read(tmp_path, "run: PPO\nzoo: {tags: [classic], target: 1}\nmeasured: {episodes: 100}\n")
    assert experiment == Experiment("PPO")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3e-4", 3e-4), ("1e6", 1e6), ("2.5e3", 2500.0), ("1E+2", 100.0), ("1_000", 1000), ("e5", "e5")),
        *(("-.5", -0.5), ("+.5", 0.5), (".5e3", 500.0), ("-.5e-1", -0.05), ("'3e-4'", "3e-4"), ("-.", "-.")),
    ],
)
def test_numbers_of_yaml_1_2(tmp_path, text, value):
    config = read(tmp_path, f"config: {{x: {text}}}").config
    assert config == {"x": value}
    assert type(config["x"]) is type(value)


@pytest.mark.parametrize("text", ["2001-12-31", "2001-12-31 10:30:00", "16:00", "-1:30.5"])
def test_dates_and_times_are_text_which_checkpoints_store(tmp_path, text):
    config = PPOConfig(env_config=read(tmp_path, f"config: {{env_config: {{from: {text}}}}}").config["env_config"])
    assert config.env_config == PPOConfig.from_json(config.to_json()).env_config == {"from": text}


def aliases(first, form):
    """A config of 10 keys, each with 9 aliases of the key before in this form."""
    more = [f"a{i + 1}: &a{i + 1} {form.format(', '.join([f'*a{i}'] * 9))}" for i in range(10)]
    return "\n  ".join(["config:", first, *more])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rum: PPO", "did you mean 'run'?"),
        ("algo: PPO", "it is 'run' here"),
        ("seed: 1", "keys of the algorithm go under config"),
        ("mine: {run: PPO}", "move the keys of 'mine' to the top"),
        ("{env: CartPole-v1, config: {env: Pendulum-v1}}", "Two different environments are given."),
        ("stop: {timestep_total: 5}", "did you mean 'timesteps_total'?"),
        ("stop: {timesteps_total: many}", "A stop condition is not a number"),
        ("stop: {timesteps_total: true}", "A stop condition is not a number"),
        ("stop: {training_iteration: 0}", "before training begins"),
        ("config: {lr: 1, lr: 2}", "repeated key 'lr'"),
        ("config: [1]", "A section of the experiment file has the wrong type."),
        ("run: 3", "A section of the experiment file has the wrong type."),
        ("- run", "not a mapping of keys"),
        ("", "not a mapping of keys"),
        ("run: {", "not valid YAML"),
        ("run: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("run: !!bool x", "does not fit its tag"),
        ("run: !!int ''", "does not fit its tag"),
        ("config: " + "[" * 5000, "nested more than 50 deep"),
        ("config: " + "{a: " * 5000, "nested more than 50 deep"),
        ("\n".join(f"{'  ' * i}a:" for i in range(200)), "nested more than 50 deep"),
        ("config: &a {x: *a}", "an alias inside its own anchor"),
        ("config: {a: 1}" + " " * 1_000_000, "more than 1000000 bytes"),
        ("config: \x00", "not valid YAML"),
        (aliases("a0: &a0 [1]", "[{}]"), "more than 100000 nodes"),
        (aliases("a0: &a0 {x: 1}", "{{<<: [{}]}}"), "more than 100000 nodes"),
    ],
)
def test_errors_name_the_mistake(tmp_path, text, message):
    with pytest.raises(ConfigError, match="experiment.yaml") as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_json_may_escape_characters_of_two_code_units(tmp_path):
    config = {"env_config": {"map 🧭": "🏁 é\ufeff", "half": "\ud83d"}}
    assert read(tmp_path, json.dumps({"config": config})).config == config


def test_yaml_merge_keys_are_not_repeated_keys(tmp_path):
    text = "config:\n  model: &m {a: 1}\n  other: {<<: *m, b: 2}\n"
    assert read(tmp_path, text).config["other"] == {"a": 1, "b": 2}


def test_stored_tuples_are_restored(tmp_path):
    assert read(tmp_path, 'config: {lr_schedule: {"$tuple": [0, 1]}}').config == {"lr_schedule": (0, 1)}


FILE_WITH_CODE = """
run: tests.cli.fake_algorithm:FakeTrainer
config:
  callbacks: collections:OrderedDict
  env: my_envs:Maze
  input_config: {format: my_data:Reader}
  multiagent: {policy_mapping_fn: json:dumps}
  env_config: {a: "json:dumps", b: {$code: "json:dumps"}}
"""


def test_a_file_imports_nothing_without_trust(tmp_path):
    experiment = read(tmp_path, FILE_WITH_CODE)
    assert list(missing_code(experiment.config)) == [
        StoredCode("callbacks", "collections:OrderedDict"),
        StoredCode("env", "my_envs:Maze"),
        StoredCode("input_config.format", "my_data:Reader"),
        StoredCode("multiagent.policy_mapping_fn", "json:dumps"),
        StoredCode("env_config.b", "json:dumps"),
    ]
    assert experiment.config["env_config"]["a"] == "json:dumps"  # a string, which no field for code holds
    given = {"callbacks": None, "input_config": {"format": "csv"}, "multiagent": {"policy_mapping_fn": None}}
    with pytest.raises(ConfigError, match=r"'env_config.b'\n.*json:dumps\n.*--trust-code"):
        override(experiment, run=None, env="CartPole-v1", config=given, stop={})
    given["env_config"] = {"b": 1}
    with pytest.raises(ConfigError, match=r"'env'\n.*my_envs:Maze\n.*--trust-code"):
        override(experiment, run=None, env=None, config=given, stop={})
    experiment = override(experiment, run=None, env="CartPole-v1", config=given, stop={})
    assert (experiment.env, experiment.config["env_config"]["b"]) == ("CartPole-v1", 1)
    with pytest.raises(ConfigError, match=r"--run\n.*fake_algorithm:FakeTrainer\n(.|\n)*--trust-code"):
        make_trainer(experiment, None, trust_code=False)


def test_a_file_that_is_read_before_any_config_is_made_imports_nothing_without_trust(tmp_path):
    """As on the command line, where nothing has imported the fields of an extension before."""
    (tmp_path / "experiment.yaml").write_text("config: {input_config: {format: 'my_data:Reader'}}")
    code = "import sys, pathlib; from rollax.runs.experiment import read_experiment as read"
    code += "; print(type(read(pathlib.Path(sys.argv[1])).config['input_config']['format']).__name__)"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "experiment.yaml"], capture_output=True, text=True)
    assert done.stdout == "StoredCode\n", done.stderr


def test_a_trusted_file_may_name_code(tmp_path):
    (tmp_path / "experiment.yaml").write_text(FILE_WITH_CODE)
    experiment = read_experiment(tmp_path / "experiment.yaml", trust_code=True)
    assert experiment.config["callbacks"] is OrderedDict
    assert experiment.config["multiagent"] == {"policy_mapping_fn": json.dumps}
    assert experiment.config["env_config"] == {"a": "json:dumps", "b": json.dumps}
    used_later = experiment.run, experiment.config["env"], experiment.config["input_config"]["format"]
    assert all(isinstance(path, ImportPath) for path in used_later)


def test_options_name_code_in_its_fields():
    assert parse_config('{"callbacks": "collections:OrderedDict"}') == {"callbacks": OrderedDict}
    assert parse_config('{"callbacks": ["collections:OrderedDict"]}') == {"callbacks": [OrderedDict]}
    parsed = parse_settings(["model.custom_model=mine:Net", "env_config.a=mine:Net", "env_config.spaces_of=mine:Maze"])
    assert isinstance(parsed["model"]["custom_model"], ImportPath)
    assert isinstance(parsed["env_config"]["spaces_of"], ImportPath)
    assert type(parsed["env_config"]["a"]) is str


def test_options_of_many_levels_are_refused():
    for depth, message in ((200, "nested too deep"), (100_000, "The option is not valid JSON")):
        with pytest.raises(ConfigError, match=message):
            parse_config('{"a":' * depth + "1" + "}" * depth)


def test_merged_is_recursive_and_keeps_its_arguments():
    base = {"model": {"a": 1, "b": 2}, "x": 1, "y": {"z": 1}}
    found = merged(base, {"model": {"b": 3}, "x": {"n": 1}, "y": 2})
    assert found == {"model": {"a": 1, "b": 3}, "x": {"n": 1}, "y": 2}
    assert base == {"model": {"a": 1, "b": 2}, "x": 1, "y": {"z": 1}}


def test_override_keeps_values_without_an_option():
    base = Experiment("PPO", "A", {"lr": 1}, {"timesteps_total": 5})
    assert override(base, run=None, env=None, config={}, stop={}) == base
    over = override(base, run="PG", env="B", config={"lr": 2}, stop={"episode_reward_mean": 1})
    assert over == Experiment("PG", "B", {"lr": 2}, {"episode_reward_mean": 1, "timesteps_total": 5})


def test_a_repeated_key_is_refused():
    refused(ConfigError, parse_config, '{"lr": 1, "lr": 2}', says="not valid JSON: a repeated key among ['lr', 'lr']")


def test_keys_that_a_run_has_left_out_stay_left_out(tmp_path):
    """In `config.json` all keys have values; a policy of another algorithm takes over those that were set, only."""
    config = {"env": "CartPole-v1", "gamma": 0.9, "lambda": 0.8, "model": {"fcnet_hiddens": (8,)}}
    stored = PPOConfig(**config).to_json()
    stored["train_batch_size"] = 512  # edited by hand
    experiment = read(tmp_path, json.dumps({"run": "PPO", "config": stored}))
    experiment = override(experiment, run=None, env=None, config={"seed": 1}, stop={})
    with make_trainer(experiment, None, trust_code=False) as trainer:
        set_here = {"train_batch_size", "seed", "env", "gamma", "lambda_", "model"}
        assert trainer.config == PPOConfig(**config, train_batch_size=512, seed=1)
        assert trainer.config.model_fields_set == set_here
        assert trainer.config.for_policy(A2CConfig) == A2CConfig(**{**config, "lambda": 1.0}, seed=1)


class TestPresets:
    def test_keys_of_the_config_replace_those_of_a_preset(self, tmp_path):
        text = "run: PPO\nenv: CartPole-v1\npreset: rllib\nconfig: {lr: 0.01, model: {fcnet_activation: relu}}\n"
        experiment = override(read(tmp_path, text), run=None, env=None, config={"num_sgd_iter": 2}, stop={})
        with make_trainer(experiment, None, trust_code=False) as trainer:
            config = trainer.config
            assert (config.lr, config.num_sgd_iter, config.clip_param) == (0.01, 2, 0.3)
            assert (config.model.fcnet_hiddens, config.model.fcnet_activation) == ((256, 256), "relu")

    def test_an_option_replaces_the_preset_of_a_file(self, tmp_path):
        experiment = read(tmp_path, "run: PPO\nenv: CartPole-v1\npreset: nothing\n")
        experiment = override(experiment, run=None, env=None, config={}, stop={}, preset="rllib")
        with make_trainer(experiment, None, trust_code=False) as trainer:
            assert trainer.config.clip_param == 0.3

    def test_a_preset_without_effect_is_refused(self, tmp_path):
        whole = {"run": "PPO", "preset": "rllib", "config": PPOConfig(env="CartPole-v1").to_json()}
        for experiment, resume in ((read(tmp_path, json.dumps(whole)), None), (Experiment(preset="rllib"), tmp_path)):
            refused(ConfigError, make_trainer, experiment, resume, says="preset", trust_code=False)

    def test_the_preset_of_another_trainer_class_is_that_of_its_name(self):
        ppo = ImportPath("rollax.algorithms.ppo:PPOTrainer")
        experiment = Experiment(ppo, "CartPole-v1", {"train_batch_size": 128}, preset="rllib")
        with make_trainer(experiment, None, trust_code=False) as trainer:
            assert (trainer.config.train_batch_size, trainer.config.num_sgd_iter) == (128, 30)
