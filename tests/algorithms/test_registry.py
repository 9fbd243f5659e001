"""Algorithms by name."""

from __future__ import annotations

import importlib.util

import pytest

from rollax import DQNConfig, RainbowConfig, TD3Config, TrainerConfig
from rollax.algorithms import registry
from rollax.config.synonyms import SYNONYMS
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean PPO?"):
        registry.get_trainer_class("PPPO")
    with pytest.raises(ConfigError, match="rollax list"):
        registry.get_trainer_class("zzzzzzz")


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_algorithm_is_what_it_is_called(name):
    trainer_class = registry.get_trainer_class(name)
    assert trainer_class.name == name
    assert registry.get_trainer_class(name.lower()) is trainer_class
    assert trainer_class.policy_class.config_class is trainer_class.config_class  # so that it may stand alone


def test_modules_are_found_without_being_imported():
    for path in registry.ALGORITHMS.values():
        assert importlib.util.find_spec(path.partition(":")[0]) is not None


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("DQN", RainbowConfig(), r"got: +RainbowConfig\n +expected: a DQNConfig(.*\n)+.*use RainbowTrainer"),
        ("DDPG", TD3Config(), "use TD3Trainer"),
        ("Rainbow", DQNConfig(), "use DQNTrainer"),
        ("PPO", TrainerConfig(), "a trainer whose config_class is TrainerConfig"),
    ],
)
@pytest.mark.parametrize("where", ["beside the env", "with the env in it"])
def test_the_config_of_another_algorithm(name, config, said, where):
    given = {"env": "CartPole-v1", "config": config}
    if where == "with the env in it":
        given = {"config": config.changed(env="CartPole-v1")}
    with pytest.raises(ConfigError, match=said):
        registry.get_trainer_class(name)(**given)


def test_names_of_other_libraries_lead_to_keys_that_there_are():
    configs = [registry.get_trainer_class(name).config_class for name in registry.ALGORITHMS]
    keys = {"lambda" if key == "lambda_" else key for config in configs for key in config.model_fields}
    keys |= {f"model.{key}" for key in ModelConfig.model_fields}
    assert {key for found in SYNONYMS.values() for key in found.split()} <= keys
