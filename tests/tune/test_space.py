"""Spaces: which keys and values the fields of an algorithm accept, and the default space."""

import pytest

from rollax import ConfigError
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.config.trainer import resolve_config
from rollax.tune.distributions import Choice, Range, parse_space
from rollax.tune.space import SEARCHED_BY_DEFAULT, check_space, default_space, nested, with_values

PPO = get_trainer_class("PPO").config_class


@pytest.mark.parametrize(
    "words",
    [
        {"lr": {"log": [1e-5, 1e-2]}},
        {"lambda": {"uniform": [0.9, 1]}},
        {"train_batch_size": {"int": [128, 512], "log": True}},
        {"model.fcnet_hiddens": {"choice": [[64], [64, 64]]}},
        {"model": {"choice": [{"fcnet_hiddens": [64]}, {}]}},
        {"grad_clip": {"choice": [None, 0.5]}},
        {"lr_schedule": {"choice": [None, [[0, 1e-3], [1000, 0]]]}},
        {"env_config.g": {"uniform": [8, 10]}},
        {"observation_filter": {"choice": ["NoFilter", "MeanStdFilter"]}},
    ],
)
def test_distributions_that_fit_a_field(words):
    check_space(parse_space(words, "search"), PPO, "search")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"learning_rate": {"log": [1e-5, 1e-2]}}, "'lr'"),
        ({"fcnet_hiddens": {"choice": [[64], [32]]}}, "'model'"),
        ({"model.hiddens": {"choice": [[64], [32]]}}, "fcnet_hiddens"),
        ({"tau": {"log": [1e-3, 1e-1]}}, "SAC"),
        ({"env_config": {"choice": [1, 2]}}, "env_config"),
        ({"gamma": {"uniform": [0.9, 1.5]}}, "gamma <= 1"),
        ({"lambda": {"uniform": [0.9, 1.5]}}, "lambda <= 1"),
        ({"train_batch_size": {"log": [128, 512]}}, "'int'"),
        ({"train_batch_size": {"choice": [128, 0.5]}}, "train_batch_size"),
        ({"num_sgd_iter": {"choice": [True, 3]}}, "num_sgd_iter"),
        ({"model.fcnet_hiddens": {"int": [32, 64]}}, "fcnet_hiddens"),
        ({"observation_filter": {"choice": ["NoFilter", "Mean"]}}, "MeanStdFilter"),
        ({"seed": {"int": [0, 9]}}, "seeds"),
        ({"env": {"choice": ["A", "B"]}}, "env"),
        ({"multiagent.policies": {"choice": [{}, None]}}, "multiagent"),
    ],
)
def test_distributions_that_do_not(words, named):
    with pytest.raises(ConfigError, match=named):
        check_space(parse_space(words, "search"), PPO, "search")


def test_dotted_keys_are_keys_of_parts():
    assert nested({"lr": 1, "model.a": 2, "model.b": 3}) == {"lr": 1, "model": {"a": 2, "b": 3}}
    config = {"model": {"a": 1, "c": 4}}
    assert with_values(config, {"model.a": 2}) == {"model": {"a": 2, "c": 4}}
    assert config == {"model": {"a": 1, "c": 4}}


@pytest.mark.short(every=3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_default_space_of_every_algorithm(algorithm):
    config_class = get_trainer_class(algorithm).config_class
    space = default_space(config_class, {})
    assert "lr" in space
    assert 2 <= len(space) <= 6
    check_space(space, config_class, "search")
    for number in range(2):  # the lowest values together, and the highest ones
        resolve_config(config_class, nested({key: found.examples()[-number] for key, found in space.items()}))


def test_the_default_space_depends_on_the_config():
    space = default_space(PPO, {"lr": 2e-3, "train_batch_size": 512})
    assert space["lr"] == Range(2e-4, 2e-2, log=True)
    assert space["train_batch_size"] == Choice((256, 512, 1024))
    assert "lr" not in default_space(PPO, {"lr_schedule": [[0, 1e-3], [1000, 0.0]]})  # it would have no effect


def test_keys_of_the_default_space_are_keys_of_some_algorithm():
    known = {key for name in ALGORITHMS for key in default_space(get_trainer_class(name).config_class, {})}
    assert known == set(SEARCHED_BY_DEFAULT)
