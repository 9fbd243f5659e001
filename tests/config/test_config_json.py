import copy
import json
import pickle
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import BaseModel

from rollax.config import Lambda, TrainerConfig
from rollax.config.json_form import decode_config, missing_code
from rollax.core.importing import ImportPath, StoredCode
from rollax.core.space_json import space_from_json, space_to_json
from rollax.core.spaces import same_space
from rollax.errors import ConfigError, SpaceError
from tests.env.refused import raised, refused


def f32(rows) -> np.ndarray:
    return np.array(rows, np.float32)


# Importable classes and functions from elsewhere: a test module has no import path of its own.
ENV, MAPPING, CALLBACKS = spaces.Box, json.dumps, OrderedDict
BOX = spaces.Box(-1, np.inf, (2,), np.float32)


class SomeConfig(TrainerConfig):
    lambda_: Lambda = 0.95


def stored(config: TrainerConfig) -> dict:
    """What a file gives back: strict JSON, so tuples are lists and NaN would be refused."""
    return json.loads(json.dumps(config.to_json(), allow_nan=False))


def test_plain_config_reads_well_and_comes_back():
    config = SomeConfig(env="CartPole-v1", lr_schedule=((0, 1.0), (10, 0.5)), seed=3, lambda_=0.5)
    data = stored(config)
    assert [data[key] for key in ("env", "lambda", "seed")] == ["CartPole-v1", 0.5, 3]
    assert data["lr_schedule"] == [[0, 1], [10, 0.5]]
    assert data["model"]["fcnet_hiddens"] == [64, 64]
    assert data["given"] == ["env", "lambda_", "lr_schedule", "seed"]
    assert set(data) == {"given", "lambda", *SomeConfig.model_fields} - {"lambda_"}
    assert SomeConfig.from_json(data) == config
    assert SomeConfig.from_json(data, seed=4).seed == 4


def test_values_of_env_config():
    env_config = {
        "values": [(1, [2, (3,)]), BOX, float("-inf"), np.float32(0.5), None, Path("data") / "x.csv", b"\x00\xff"],
        "sets": [{3, "b"}, frozenset([(1, 2)])],
        "by_id": {1: "a", (2, 3): {"$x": None}},
    }
    assert SomeConfig.from_json(stored(SomeConfig(env_config=env_config))).env_config == env_config
    array = SomeConfig.from_json(stored(SomeConfig(env_config={"a": f32([[1, np.inf]])}))).env_config["a"]
    np.testing.assert_array_equal(array, f32([[1, np.inf]]))
    assert array.dtype == np.float32
    texts = SomeConfig.from_json(stored(SomeConfig(env_config={"a": np.array(["x", "yz"])}))).env_config["a"]
    assert texts.tolist() == ["x", "yz"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"x": BOX, "a": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary([2, 3])])}),
        spaces.Box(np.array([[0, 1], [2, -np.inf]], np.float64), np.inf, (2, 2), np.float64),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Box(-1, 1, (1,), np.float16),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
        spaces.MultiDiscrete([3, 3], dtype=np.int32),
        spaces.MultiBinary(5),
        spaces.Dict({(0, ("a", 1)): BOX, (1, ("a", 1)): BOX}),
        spaces.Dict({np.int64(3): BOX}),
    ],
    ids=str,
)
def test_spaces(space):
    back = SomeConfig.from_json(stored(SomeConfig(observation_space=space, action_space=spaces.Discrete(3, start=1))))
    assert same_space(back.observation_space, space)
    assert back.observation_space.dtype == space.dtype
    assert back.action_space == spaces.Discrete(3, start=1)


def coded() -> SomeConfig:
    policies = {"a": (CALLBACKS, BOX, None, {"gamma": 0.5}), "b": None}
    return SomeConfig(
        env=ENV,
        callbacks=CALLBACKS,
        model={"custom_model": ENV},  # pyright: ignore[reportArgumentType]
        multiagent={"policies": policies, "policy_mapping_fn": MAPPING},  # pyright: ignore[reportArgumentType]
    )


def test_code_is_stored_by_its_path():
    data = stored(coded())
    assert data["env"] == data["model"]["custom_model"] == "gymnasium.spaces.box:Box"
    assert data["callbacks"] == {"$code": "collections:OrderedDict"}
    assert data["multiagent"]["policy_mapping_fn"] == {"$code": "json:dumps"}


def test_code_is_imported_only_where_it_is_trusted():
    back = SomeConfig.from_json(stored(coded()), trust_code=True)
    assert (back.callbacks, back.multiagent.policy_mapping_fn) == (CALLBACKS, MAPPING)
    assert back.multiagent.policies == coded().multiagent.policies

    back = SomeConfig.from_json(stored(coded()))
    assert back.multiagent.policies["a"][1:] == (BOX, None, {"gamma": 0.5})
    assert isinstance(back.callbacks, StoredCode)
    assert back.multiagent.policy_mapping_fn is not None
    with pytest.raises(ConfigError, match=r"multiagent.policy_mapping_fn'\n.*json:dumps\n.*trust_code=True"):
        back.multiagent.policy_mapping_fn("agent")
    assert stored(back) == stored(coded())


def test_a_list_of_callbacks():
    config = SomeConfig(callbacks=[CALLBACKS, MAPPING.__class__])  # pyright: ignore[reportArgumentType]
    data = stored(config)
    assert data["callbacks"] == [{"$code": "collections:OrderedDict"}, {"$code": None}]
    data["callbacks"][1] = {"$code": "collections:Counter"}
    assert SomeConfig.from_json(data, trust_code=True).callbacks == (CALLBACKS, Counter)
    back = SomeConfig.from_json(data).callbacks
    assert isinstance(back, tuple)
    assert [getattr(one, "key", None) for one in back] == ["callbacks[0]", "callbacks[1]"]


def test_what_has_no_path_is_named():
    class Local:
        pass

    config = SomeConfig(
        env=lambda context: None,
        callbacks=Local,
        env_config={"a": [1, object()], "b": spaces.Text(3)},
        multiagent={"policies": {"x": (Local, None, None, {})}},  # pyright: ignore[reportArgumentType]
    )
    data = stored(config)
    lost = {"$code": None}
    assert data["env"] == data["callbacks"] == lost
    assert data["env_config"] == {"a": [1, lost], "b": lost}
    assert data["multiagent"]["policies"]["x"] == {"$tuple": [lost, None, None, {}]}
    back = SomeConfig.from_json(data, trust_code=True)
    with pytest.raises(ConfigError, match=r"'env'\n.*without an import path.*\n.*pass env itself"):
        back.env({})
    assert back.env_config["a"] == [1, StoredCode("env_config.a[1]", None)]
    assert stored(back) == data
    assert SomeConfig.from_json(data, env="CartPole-v1").env == "CartPole-v1"


def test_code_of_the_running_script_has_no_path(monkeypatch):
    script = type("Script", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Script", script, raising=False)
    assert stored(SomeConfig(env=script))["env"] == {"$code": None}


def test_unusable_data():
    data = stored(coded())
    raised(ConfigError, SomeConfig.from_json, {**data, "gama": 1}, says="Unknown config key 'gama'")
    with pytest.raises(ConfigError, match=r"cannot be imported.\n.*callbacks"):
        SomeConfig.from_json({**data, "callbacks": {"$code": "collections:Missing"}}, trust_code=True)
    with pytest.raises(ConfigError, match=r"newer|unknown to this version"):
        SomeConfig.from_json({**data, "callbacks": {"$pickle": "..."}})


OF_ROLLAX = (
    *("env.recording:subprocess.run", "core.storage:os.system", "core.storage:os", "core.storage:shutil"),
    *("core.storage:write_directory", "core.importing:import_object", "env.registry:env_creator"),
    *("env.recording:RecordingCreator", "policy.policy:Policy", "no_such_module:PPO"),
    *("algorithms.ppo:PPOTrainer", "algorithms.load_policy:PPO", "algorithms.apex:DQN", "algorithms.ppo:PPO.__init__"),
    *("algorithms.ppo:PPO.__init__.__globals__", "algorithms.ppo", "algorithms..ppo:PPO"),
)
FORGED = [*(f"rollax.{path}" for path in OF_ROLLAX), "rollax:PPO", "tests.algorithms.own_code:Lean", "os:system", ":"]
FIELDS = [
    {"env": "*"},
    {"env_config": {"x": ["*"]}},
    {"callbacks": "*"},
    {"model": {"custom_model": "*"}},
    {"model": {"custom_model_config": {"x": "*"}}},
    {"multiagent": {"policies": {"a": "*"}}},
    {"multiagent": {"policies": {"a": {"$tuple": ["*", None, None, {}]}}}},
    {"multiagent": {"policies": {"a": {"$tuple": [None, None, None, {"model": {"custom_model": "*"}}]}}}},
    {"multiagent": {"policies": {"a": None}, "policy_mapping_fn": "*"}},
    {"evaluation_config": {"env": "*"}},
    {"evaluation_config": {"$dict": [["env", "*"]]}},
    {"evaluation_config": {"multiagent": {"policies": {"a": {"$tuple": ["*"]}}}}},
]


def put(template, value):
    if isinstance(template, dict):
        return {name: put(part, value) for name, part in template.items()}
    if isinstance(template, list):
        return [put(part, value) for part in template]
    return value if template == "*" else template


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_a_file_names_no_code_without_the_callers_word(field):
    for path in FORGED:
        (code,) = missing_code(decode_config(put(field, {"$code": path})))
        assert code.path == path
        # In env_config and custom_model_config a string is only a string; one without a colon names an environment.
        if ":" in path and "_config" not in next(iter(field)) + str(list(field.get("model", ()))):
            assert [code.path for code in missing_code(decode_config(put(field, path)))] == [path]


def test_a_file_names_policies_of_rollax_where_a_policy_belongs():
    path = "rollax.algorithms.ppo:PPO"
    for field in FIELDS:
        of_policy = "policies" in str(field) and "custom_model" not in str(field) and "_fn" not in str(field)
        assert (not list(missing_code(decode_config(put(field, {"$code": path}))))) is of_policy


@pytest.mark.parametrize(
    "value",
    [
        *({"$code": 3}, {"$tuple": 3}, {"$tuple": {}}, {"$float": "many"}, {"$float": []}, {"$space": 3}),
        *({"$dict": [1]}, {"$dict": [[[], 1]]}, {"$array": [1]}, {"$array": 1, "dtype": "int8"}),
        *({"$array": ["x"], "dtype": "float32"}, {"$array": ["x"], "dtype": "object"}),
        *({"$array": [300], "dtype": "uint8"}, {"$array": [[1], 2], "dtype": "int8"}),
        *({"$code": "json:dumps", "more": 1}, {"$unknown": 1}, {"$array": [1], "dtype": "no such"}, {"$": 1}),
    ],
    ids=str,
)
def test_malformed_marks(value):
    with pytest.raises((ConfigError, SpaceError), match=r"(.|\n)*'env_config.x\[0\]'"):
        decode_config({"env_config": {"x": [value]}})


def test_a_bound_that_the_dtype_cannot_hold_is_no_infinity():
    stored = space_to_json(spaces.Box(-1, 1, (2,), np.float32))
    refused(SpaceError, space_from_json, {**stored, "high": [1e308, 1.0]}, says="overflow")


@pytest.mark.parametrize(
    "rows", [["a"], [["a"], ["b"]], [[["", "a" * 50]]], [1, 2]], ids=["one", "two", "three axes", "no strings"]
)
def test_a_dtype_of_strings_takes_no_more_memory_than_a_file_explains(rows):
    refused(ConfigError, decode_config, {"env_config": {"x": {"$array": rows, "dtype": "U500000000"}}})


def test_arrays_of_strings_come_back():
    for array in np.array(["a", "b" * 40]), np.array([["", "x"]], "U20"), np.zeros((0, 3), "U9"):
        found = stored(SomeConfig(env_config={"x": array}))["env_config"]
        back = decode_config({"env_config": found})["env_config"]["x"]
        assert back.dtype == array.dtype
        assert back.tolist() == array.tolist()


def test_an_array_without_axes_is_stored_as_a_number_or_string():
    assert stored(SomeConfig(env_config={"x": np.array("ab"), "y": np.array(2)}))["env_config"] == {"x": "ab", "y": 2}


def test_an_array_that_could_not_be_read_again_is_not_stored():
    assert stored(SomeConfig(env_config={"x": np.array(["a"], "U1000")}))["env_config"] == {"x": {"$code": None}}


BOX_OF_16M = {"type": "Box", "shape": [1 << 24], "dtype": "float64", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "spaces_of_config",
    [
        [{"$space": BOX_OF_16M}] * 3,
        {"a": {"$tuple": [{"$space": BOX_OF_16M}]}, "b": [{"$space": BOX_OF_16M}], "c": {"$space": BOX_OF_16M}},
        [{"$space": {"type": "Tuple", "spaces": [BOX_OF_16M] * 30 + [{"type": "Box", "shape": [-1, 1 << 30]}]}}],
        [{"$space": {"type": "Tuple", "spaces": [BOX_OF_16M] * 9 + [{"type": "Discrete", "n": -(1 << 40)}]}}],
    ],
    ids=["many", "in many places", "a negative shape", "a negative number"],
)
def test_the_spaces_of_a_stored_config_are_bounded_together(spaces_of_config, monkeypatch):
    monkeypatch.setattr(np, "broadcast_to", lambda *_: pytest.fail("memory is taken"))
    refused(SpaceError, decode_config, {"env_config": {"x": spaces_of_config}})


CODE_KEYS = ["env", "model.custom_model", "env_config.spaces_of", "env_config.env_id"]


@pytest.mark.parametrize(
    "place",
    [*CODE_KEYS, *(f"evaluation_config.{key}" for key in CODE_KEYS), "multiagent.policies.a.3.model.custom_model"],
)
def test_who_wrote_a_path_stays_known(place):
    """A path of the caller remains one in copies and other processes; in a stored config it is one only with trust."""
    names = [int(name) if name.isdigit() else name for name in place.split(".")]
    changes: Any = "some_module:Name"
    for name in reversed(names):
        changes = (None, None, None, changes) if name == 3 else {name: changes}

    def path_in(config: TrainerConfig) -> Any:
        found: Any = config
        for name in names:
            found = getattr(found, str(name)) if isinstance(found, BaseModel) else found[name]
        return found

    config = TrainerConfig(**changes)
    copies = [config, config.changed(seed=1), TrainerConfig().changed(**changes), copy.deepcopy(config)]
    copies.append(pickle.loads(pickle.dumps(config)))  # noqa: S301
    copies += [TrainerConfig.from_json(stored(TrainerConfig()), **changes)]
    copies += [TrainerConfig.from_json(stored(config), trust_code=True)]
    assert {type(path_in(one)) for one in copies} == {ImportPath}
    for read in (TrainerConfig.from_json(stored(config)), TrainerConfig.from_json(config.to_json())):
        assert isinstance(path_in(read), StoredCode)
        assert isinstance(path_in(read.changed(seed=1)), StoredCode)
