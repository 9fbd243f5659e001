"""Suggestions for typing errors."""

import pytest

from rollax.errors import ConfigError, corrected, nearest, not_installed, typing_errors


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
