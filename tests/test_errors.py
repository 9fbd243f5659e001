"""The five parts of errors, the constructors of those that recur, and suggestions for typing errors."""

import pickle

import pytest

from rollax import PPOTrainer
from rollax.algorithms.checkpoint import errors_as_damaged
from rollax.core.cleanup import cleanup_on_error
from rollax.env.checks import failed
from rollax.errors import (
    BatchError,
    CheckpointError,
    ConfigError,
    EnvError,
    PolicyError,
    RequestError,
    corrected,
    nearest,
    not_installed,
    text_of,
    typing_errors,
)
from rollax.errors.recurring import RecurringErrors
from rollax.rollout.policy_mapping import PolicyMapping
from tests.env.refused import refused

PAIRS = {("", ""): 0, ("lamda", "lambda"): 1, ("gmama", "gamma"): 1, ("", "ab"): 2, ("abc", "xbz"): 2}


@pytest.mark.parametrize(("pair", "errors"), [*PAIRS.items(), (("kitten", "sitting"), 3)])
def test_errors_are_counted(pair, errors):
    assert typing_errors(*pair) == typing_errors(*reversed(pair)) == errors


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
    refused(PolicyError, PolicyMapping(raises, ["a"]), "agent", None, says="MuteError")
    with pytest.raises(CheckpointError, match="MuteError"), errors_as_damaged("here"):
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

    refused(ConfigError, PPOTrainer, refusing, {"env_config": {"size": 3}}, says="MuteTypeError")


def test_the_remedy_follows_the_problem():
    error = EnvError("The door is locked.", "room 3", 0).expected("an open door", "turn the key")
    assert list(error.parts) == ["what", "where", "got", "expected", "fix"]
    assert str(error).splitlines() == [
        "The door is locked.",
        "  where:    room 3",
        "  got:      0",
        "  expected: an open door",
        "  fix:      turn the key",
    ]
    assert EnvError("The door is locked.", fix="turn the key").expected("an open door").parts["fix"] == "turn the key"
    assert "got" not in EnvError("The door is locked.", "room 3").parts
    assert EnvError("The door is locked.", "room 3", None).parts["got"] == "None"


@pytest.mark.parametrize(
    "error",
    [
        EnvError("The door is locked.", "room 3", 0).expected("an open door", "turn the key"),
        PolicyError.is_not("The model", "a module", "make_model", 3).fix("return the module"),
        RequestError("Too late.", "get_action", status=409, error_id="x").expected("an earlier call"),
    ],
)
def test_errors_can_be_sent_to_other_processes(error):
    sent = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(sent), str(sent), sent.parts) == (type(error), str(error), error.parts)
    assert getattr(sent, "status", None) == getattr(error, "status", None)


RECURRING = {
    "unknown": ("policy", "lefd", ["left", "right"], "here"),
    "missing": ("environment", "here", "an id"),
    "twice": ("env", "here", "a, b"),
    "no_effect": ("lr", "nothing learns", "here", 1),
    "is_not": ("The reward", "a number", "here", "x"),
    "not_callable": ("The creator", "here", 3, "a function"),
    "out_of_range": ("capacity", "here", -1, "at least 1"),
    "not_finite": ("The action", "here", float("nan")),
    "wrong_shape": ("The actions have", "here", (3,), (2,)),
    "wrong_keys": ("The actions are of other agents.", "here", {"b"}, {"a"}),
    "not_in_space": ("The action", "here", 3, "Discrete(2)"),
    "no_space": ("action_space", "here"),
    "no_valid_action": ("here", [0, 0]),
    "not_waiting": ("an agent", "here", "a second action"),
    "one_policy_only": ("here", {"a": 1, "b": 2}),
    "raised": ("The mapping", ValueError("no"), "here", "a policy id"),
    "not_returned": ("reset()", "(obs, info)", "here", None),
    "not_written": ("The video", "here", OSError("full")),
    "damaged": ("here", "3 bytes", "4 bytes"),
    "untrusted": ("The file names code", "here", "a:B", "the class", "pass it"),
    "too_large": ("The buffer needs", "here", "9 GiB", "8 GiB"),
}


@pytest.mark.parametrize("name", RECURRING)
def test_errors_that_recur_have_five_parts(name):
    error = getattr(BatchError, name)(*RECURRING[name])
    assert type(error) is BatchError
    assert list(error.parts) == ["what", "where", "got", "expected", "fix"]
    assert error.parts["what"].endswith(("?", ".", "no"))
    assert error.expected("another thing", "do another thing") is error
    assert (error.parts["where"], error.parts["fix"]) == ("here", "do another thing")
    assert str(error).endswith("expected: another thing\n  fix:      do another thing")


def test_every_constructor_is_tested():
    own = {name for name, value in vars(RecurringErrors).items() if isinstance(value, classmethod)}
    assert own == set(RECURRING)


def test_an_unknown_name_has_the_nearest_one_as_its_fix():
    assert ConfigError.unknown("hand", "lefd", ["left", "right"], "here").parts["fix"] == "did you mean 'left'?"
