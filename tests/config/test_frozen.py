"""A config cannot change: neither its fields, nor what stands in them, nor through what the caller holds on to."""

import copy
import json
import operator
import pickle
import pprint
from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import ValidationError

from rollax.algorithms.dqn import DQNConfig
from rollax.algorithms.ppo import PPOConfig
from rollax.core.frozen import FrozenDict, FrozenList, frozen, thawed
from rollax.env.registry import EnvContext
from rollax.errors import ConfigError
from rollax.models.config import ModelConfig
from rollax.policy.policy_spec import PolicySpec

NESTED = {"a": {"b": [1, {"c": 2}], "t": (3, [4])}, "o": OrderedDict(x=[5]), "m": MappingProxyType({"y": 6})}
# Methods and their arguments.
CHANGES = [
    *(("__setitem__", "x", 1), ("__delitem__", "a"), ("update", {"x": 1}), ("__ior__", {"x": 1})),
    *(("setdefault", "x", 1), ("pop", "a"), ("popitem",), ("clear",)),
]
CHANGES_OF_LISTS = [
    *(("__setitem__", 0, 1), ("__setitem__", slice(0, 1), []), ("__delitem__", 0), ("__iadd__", [1]), ("__imul__", 2)),
    *(("append", 1), ("extend", [1]), ("insert", 0, 1), ("pop",), ("remove", 1), ("clear",), ("sort",), ("reverse",)),
]


def test_every_method_that_changes_a_dict_or_a_list_is_refused():
    value = frozen(NESTED, "env_config")
    for method, *arguments in CHANGES:
        with pytest.raises(ConfigError, match=r"'env_config.a'(.|\n)*trainer.config.changed\(env_config=\{...\}\)"):
            getattr(value["a"], method)(*arguments)
    for method, *arguments in CHANGES_OF_LISTS:
        with pytest.raises(ConfigError, match=r"'env_config.a.b'(.|\n)*changed\(env_config"):
            getattr(value["a"]["b"], method)(*arguments)
    assert value == NESTED
    # No method of dict or list that changes one has been left out.
    harmless = {"copy", "fromkeys", "get", "items", "keys", "values", "count", "index"}
    for kind, plain in ((FrozenDict, dict), (FrozenList, list)):
        methods = {name for name in vars(plain) if not name.startswith("_")} - harmless
        assert not {name for name in methods if getattr(kind, name) is getattr(plain, name)}


def test_what_is_frozen_is_used_like_what_it_was():
    value = frozen(NESTED, "env_config")
    plain = {"a": {"b": [1, {"c": 2}], "t": (3, [4])}, "o": {"x": [5]}, "m": {"y": 6}}
    assert value == plain == thawed(value)
    assert repr(value) == repr(plain)
    assert pprint.pformat(value, width=20) == pprint.pformat(plain, width=20)
    assert json.dumps(value) == json.dumps(plain)
    assert value | {"z": 1} == {**plain, "z": 1}
    for copied in (copy.deepcopy(value), copy.copy(value), pickle.loads(pickle.dumps(value))):  # noqa: S301
        assert copied == plain
        with pytest.raises(ConfigError, match="config key 'env_config'"):
            copied["x"] = 1
    assert [type(part) for part in (thawed(value), thawed(value)["a"], thawed(value)["a"]["b"])] == [dict, dict, list]
    spec = frozen({"p": PolicySpec(None, spaces.Discrete(2), None, {"gamma": 0.5})})["p"]
    assert isinstance(spec, PolicySpec)
    assert (spec.observation_space, spec.config) == (spaces.Discrete(2), {"gamma": 0.5})


def a_config() -> PPOConfig:
    return PPOConfig(
        env_config={"x": [1], "array": np.zeros(2), "space": spaces.Dict({"a": spaces.Discrete(2)})},
        evaluation_config={"env_config": {"x": [2]}},
        model={"custom_model": "a:B", "custom_model_config": {"k": {"l": 1}}},  # pyright: ignore[reportArgumentType]
        multiagent={"policies": {"p": (None, None, None, {"gamma": 0.5})}},  # pyright: ignore[reportArgumentType]
        custom_resources_per_worker={"tpu": 1.0},
    )


def test_no_dict_of_a_config_changes():
    config, other = a_config(), a_config()
    changes = {
        "env_config": lambda c: c.env_config.update(x=3),
        "env_config.x": lambda c: c.env_config["x"].append(3),
        "evaluation_config.env_config": lambda c: c.evaluation_config["env_config"].update(x=3),
        "model.custom_model_config.k": lambda c: c.model.custom_model_config["k"].clear(),
        "multiagent.policies": lambda c: c.multiagent.policies.update(q=None),
        "multiagent.policies.p[3]": lambda c: c.multiagent.policies["p"][3].update(gamma=2),
        "custom_resources_per_worker": lambda c: c.custom_resources_per_worker.update(tpu=-1),
    }
    for key, change in changes.items():
        top = key.partition(".")[0]
        for changed in (config, config.changed(lr=0.1), PPOConfig.from_json(config.to_json())):
            with pytest.raises(ConfigError) as error:
                change(changed)
            assert f"config key '{key}'" in str(error.value)
            assert f"trainer.config.changed({top}={{...}})" in str(error.value)
    assert config.to_json() == other.to_json()
    with pytest.raises(ConfigError, match=r"config key 'env_config'"):  # a default too
        PPOConfig().env_config["x"] = 1


@pytest.mark.parametrize(
    ("change", "where", "fix"),
    [
        (lambda c: setattr(c, "lr", 1), "PPOConfig.lr", "config.changed(lr=...)"),
        (lambda c: delattr(c, "lr"), "PPOConfig.lr", "config.changed(lr=...)"),
        (lambda c: setattr(c.model, "use_lstm", True), "ModelConfig.use_lstm", "changed(model={'use_lstm': ...})"),
        (lambda c: setattr(c.model, "nothing", True), "ModelConfig.nothing", "changed(model={'nothing': ...})"),
        (lambda c: delattr(c.model, "use_lstm"), "ModelConfig.use_lstm", "changed(model={'use_lstm': ...})"),
        (lambda c: operator.setitem(c, "lr", 1), "PPOConfig.lr", "config.changed(lr=...)"),
        (lambda c: operator.delitem(c, "lr"), "PPOConfig.lr", "config.changed(lr=...)"),
        (lambda c: operator.setitem(c.model, "use_lstm", True), "ModelConfig.use_lstm", "changed(model={'use_lstm'"),
        (lambda c: setattr(c.multiagent, "policies", {}), "MultiAgentConfig.policies", "changed(multiagent={"),
    ],
)
def test_no_field_changes(change, where, fix):
    config = a_config()
    with pytest.raises(ConfigError) as error:
        change(config)
    assert where in str(error.value)
    assert fix in str(error.value)
    assert config.model == a_config().model


@pytest.mark.parametrize(
    ("read", "where", "fix"),
    [
        (lambda c: c["lr"], "PPOConfig['lr']", "config.lr"),
        (lambda c: c["lambda"], "PPOConfig['lambda']", "config.lambda_"),
        (lambda c: c["gama"], "PPOConfig['gama']", "config.KEY; did you mean 'gamma'?"),
        (lambda c: c.model["use_lstm"], "ModelConfig['use_lstm']", "config.model.use_lstm"),
        (lambda c: c[0], "PPOConfig[0]", "config.KEY; use one of"),
    ],
)
def test_keys_are_read_as_attributes(read, where, fix):
    with pytest.raises(ConfigError) as error:
        read(a_config())
    assert error.value.parts["where"] == where
    assert error.value.parts["fix"].startswith(fix)


def test_what_the_caller_holds_on_to_is_not_what_the_config_holds():
    given = {"env_config": {"x": {"y": [1]}}, "multiagent": {"policies": {"p": (None, None, None, {"gamma": 0.5})}}}
    config = PPOConfig(**given)
    given["env_config"]["x"]["y"].append(2)
    given["env_config"]["x"]["z"] = 3
    given["multiagent"]["policies"]["p"][3]["gamma"] = 7
    given["multiagent"]["policies"]["q"] = None
    assert config.env_config == {"x": {"y": [1]}}
    assert config.multiagent.policies == {"p": (None, None, None, {"gamma": 0.5})}


def test_an_environment_gets_plain_dicts_of_its_own():
    config = PPOConfig(env_config={"x": {"y": [1]}})
    context = EnvContext(config.env_config, num_workers=2)
    first, second = context.at(0), context.at(1)
    first["x"]["y"].append(2)
    first["z"] = 3
    assert (first, second, config.env_config) == ({"x": {"y": [1, 2]}, "z": 3}, {"x": {"y": [1]}}, {"x": {"y": [1]}})
    assert [type(part) for part in (first["x"], first["x"]["y"])] == [dict, list]


def test_a_config_dumps_plain_values():
    dumped = a_config().model_dump(exclude={"multiagent"})
    assert type(dumped["env_config"]) is type(dumped["evaluation_config"]["env_config"]) is dict
    assert type(dumped["env_config"]["x"]) is list


ENDLESS: list = []
ENDLESS.append(ENDLESS)
AGAIN: dict = {}
AGAIN["again"] = AGAIN


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env_config", AGAIN),
        ("env_config", {"x": ENDLESS}),
        ("lr", ENDLESS),
        ("lr_schedule", [[0, ENDLESS]]),
        ("model", {"fcnet_hiddens": ENDLESS}),
        ("multiagent", {"policies_to_train": ENDLESS}),
        ("input", ENDLESS),
        ("off_policy_estimation_input", ENDLESS),
    ],
)
def test_a_value_that_contains_itself_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"config key '{key}\b(.|\n)*(fewer levels|contain itself|a valid string)"):
        DQNConfig(**{key: value, "seed": 0})


def test_a_part_made_alone_names_a_value_that_contains_itself():
    with pytest.raises(ValidationError, match=r"custom_model_config(.|\n)*does not contain itself"):
        ModelConfig(custom_model_config=AGAIN)


def test_a_check_of_ones_own_that_recurses_keeps_its_error():
    class Endless(PPOConfig):
        def check(self) -> None:
            self.check()

    with pytest.raises(RecursionError):
        Endless()


def test_a_value_of_many_levels_is_refused():
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    for changes in ({"lr": deep}, {"env_config": {"x": deep}}):
        with pytest.raises(ConfigError, match=r"config key '(lr|env_config)'(.|\n)*fewer levels"):
            PPOConfig(**changes)
