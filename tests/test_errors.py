"""Suggestions for typing errors."""

import pytest

from rollax import PPOTrainer
from rollax.algorithms.checkpoint import taking_over
from rollax.core.cleanup import cleanup_on_error
from rollax.env.checks import failed
from rollax.errors import (
    CheckpointError,
    ConfigError,
    PolicyError,
    corrected,
    nearest,
    not_installed,
    text_of,
    typing_errors,
)
from rollax.rollout.policy_mapping import PolicyMapping


@pytest.mark.parametrize(
    ("a", "b", "errors"),
    [
        ("", "", 0),
        ("", "ab", 2),
        ("lamda", "lambda", 1),
        ("gmama", "gamma", 1),
        ("abc", "xbz", 2),
        ("kitten", "sitting", 3),
    ],
)
def test_errors_are_counted(a, b, errors):
    assert typing_errors(a, b) == typing_errors(b, a) == errors


def test_one_error_for_six_letters():
    known = ["evaluation_config", "normalize_actions", "kl_target", "lr"]
    assert corrected("evaluation_cnofg", known) == "evaluation_config"
    assert corrected("LR", known) == "lr"
    assert corrected("ls", known) == "lr"
    for other in ("exploration_config", "normalize_rewards", "target_kl", "xyz", ""):
        assert corrected(other, known) is None
    assert corrected("evaluation_c", known) == "evaluation_config"  # which it begins
    assert corrected("PP", ["PG", "PPO"]) == "PPO"
    assert corrected("AP", ["APEX", "APPO", "PG"]) is None
    assert nearest("kl_tarjet", known) == "did you mean 'kl_target'?"
    assert nearest("zz", ["b", "a"]) == "use one of: a, b"
    assert nearest("zz", []) == "use one of: "


def test_a_value_whose_repr_fails_is_still_named():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no repr")

    assert "Broken object at" in ConfigError("Wrong.", got=Broken()).parts["got"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModuleNotFoundError("No module named 'brax'", name="brax"), "brax"),
        (ModuleNotFoundError("No module named 'ml_collections.x'", name="ml_collections.x"), "ml_collections"),
        (ImportError("cannot import name 'x' from 'jax'", name="jax"), "brax"),  # there, but unsuitable
    ],
)
def test_the_package_that_is_missing_is_named(error, expected):
    raised = not_installed("brax", error, where="env", package="brax", extra="jaxenvs")
    assert raised.parts["expected"] == f"the package {expected}"
    assert raised.parts["fix"] == "pip install 'rollax[jaxenvs]'"


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no message")

    __repr__ = __str__


def test_an_error_whose_message_fails_is_still_named():
    def raises(*_):
        raise MuteError

    assert "RuntimeError" in text_of(MuteError())
    assert text_of(ValueError("x")) == "x"
    assert "MuteError" in str(failed(MuteError(), "step()", "here"))
    with pytest.raises(PolicyError, match="MuteError"):
        PolicyMapping(raises, ["a"])("agent", None)
    with pytest.raises(CheckpointError, match="MuteError"), taking_over("here"):
        raises()


def test_the_first_error_stays_where_closing_fails_too():
    def closing():
        raise MuteError

    with pytest.raises(ValueError, match="the first") as raised, cleanup_on_error(closing):
        raise ValueError("the first")
    assert "MuteError" in raised.value.__notes__[0]


class MuteTypeError(MuteError, TypeError):
    pass


def test_an_environment_that_refuses_its_config_without_a_message():
    def refusing(env_config):
        raise MuteTypeError

    with pytest.raises(ConfigError, match="MuteTypeError"):
        PPOTrainer(refusing, {"env_config": {"size": 3}})
