"""Algorithms by name."""

from __future__ import annotations

import importlib.util

import pytest

from rollax.algorithms import registry
from rollax.errors import ConfigError


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


def test_modules_are_found_without_being_imported():
    for path in registry.ALGORITHMS.values():
        assert importlib.util.find_spec(path.partition(":")[0]) is not None
