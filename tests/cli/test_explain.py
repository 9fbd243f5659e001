"""`rollax explain`, and the docstrings of configs."""

import inspect

import pytest
from pydantic import Field

from rollax import DQNConfig, MARWILConfig, PPOConfig, SACConfig
from rollax.cli.explanation import explanation
from rollax.config.names_of_libraries import OF_LIBRARY
from rollax.config.synonyms import ADVICE, SYNONYMS
from rollax.errors import ConfigError, without_links
from tests.cli.command_line import invoke
from tests.env.refused import raised

CONFIGS = {"DQN": DQNConfig, "PPO": PPOConfig, "SAC": SACConfig}


def facts(key, configs):
    """What the lines after the first say, by their first word."""
    found = {}
    for line in explanation(key, configs)[1:]:
        name, _, text = line.strip().partition("  ")
        found.setdefault(name, []).append(text.strip())
    return found


def test_a_key_of_one_algorithm():
    first, *_ = explanation("lambda", {"PPO": PPOConfig})
    assert first == f"lambda: {PPOConfig.model_fields['lambda_'].description}"
    assert facts("lambda", {"PPO": PPOConfig}) == {
        "default": ["0.95"],
        "values": ["0 <= lambda <= 1"],
        "searched": ["{'choice': [0.8, 0.9, 0.95, 0.98, 1.0]} by `rollax tune`"],
        "elsewhere": ["gae_lambda (Stable-Baselines3)", "lam, q_lambda (others)"],
    }
    assert explanation("lambda_", CONFIGS) == explanation("lambda", CONFIGS)


def test_defaults_conditions_and_algorithms():
    lr = facts("lr", CONFIGS)
    assert lr["default"] == ["0.0003 (PPO, SAC)", "0.0005 (DQN)"]
    assert lr["only with"][0] == "lr_schedule=None (DQN, PPO)"
    assert lr["in"] == ["all algorithms"]
    assert facts("kl_target", CONFIGS)["only with"] == ["kl_coeff"]
    assert facts("n_step", {"MARWIL": MARWILConfig})["only with"] == ["beta: anything but 0"]
    assert facts("n_step", {"MARWIL": MARWILConfig})["values"] == ["1 <= n_step, or None"]


def test_a_key_of_a_part():
    full, short = explanation("model.lstm_cell_size", CONFIGS), explanation("lstm_cell_size", CONFIGS)
    assert full == short
    assert facts("lstm_cell_size", CONFIGS)["only with"] == ["model.use_lstm=True or model.use_gru=True"]


def test_a_key_that_an_algorithm_refuses_is_not_in_it():
    found = facts("vf_share_layers", CONFIGS)
    assert found["in"] == ["PPO"]
    assert found["not in"] == ["DQN, SAC: this algorithm has networks of its own"]


@pytest.mark.parametrize(
    ("name", "algorithm", "ours"),
    [
        ("n_steps", "PPO", "train_batch_size"),
        ("n_steps", "DQN", "n_step"),
        ("gae_lambda", "PPO", "lambda"),
        ("num_env_runners", "SAC", "num_workers"),
        ("net_arch", "PPO", "model.fcnet_hiddens"),
        ("--learning-rate", "PPO", "lr"),
    ],
)
def test_names_of_other_libraries(name, algorithm, ours):
    _, second = explanation(name, {algorithm: CONFIGS[algorithm]})
    assert second.strip().partition(":")[0] == ours


def test_a_setting_without_a_counterpart():
    assert ADVICE["use_gae"] in explanation("use_gae", CONFIGS)[1]


def test_an_unknown_key_names_the_nearest():
    raised(ConfigError, explanation, "gama", CONFIGS, says="did you mean 'gamma'")
    refusal = invoke("explain", "no_such_thing_at_all", "--algo=PPO", code=2).stderr
    assert sum(name in refusal for name in SYNONYMS) < 20
    raised(ConfigError, explanation, "coeff_of_entropy", CONFIGS, says="entropy_coeff")
    assert invoke("explain", "gamma", "--algo=ppo").output.startswith("gamma: ")


@pytest.mark.long
def test_all_names_are_explained():
    assert not [name for name in ADVICE if not explanation(name, CONFIGS)]
    for name in SYNONYMS:
        try:
            assert explanation(name, CONFIGS)
        except ConfigError:  # its counterparts are keys of other algorithms
            assert name not in ADVICE
    for config in CONFIGS.values():
        assert not [key for key in config.model_fields if not explanation(key, {"one": config})]


def test_a_name_without_a_counterpart_leads_to_the_algorithms_that_have_one():
    raised(ConfigError, explanation, "clip_range", {"DQN": CONFIGS["DQN"]}, says="'clip_param' is a key of PPO")


def test_the_names_of_libraries_are_in_the_tables():
    assert not {name for names in OF_LIBRARY.values() for name in names} - (SYNONYMS.keys() | ADVICE.keys())


def test_the_docstring_of_a_config_has_the_meaning_of_every_key():
    class Own(PPOConfig):
        """Mine.

        More about it.
        """

        width: int = Field(default=1, description="how wide it is")

    for config in (PPOConfig, SACConfig, Own):
        text = inspect.getdoc(config)
        assert all(without_links(field.description or "") in text for field in config.model_fields.values())
    assert inspect.getdoc(Own).startswith("Mine.\n\nMore about it.\n\nKeys:\n")
