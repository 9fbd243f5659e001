"""Checkpoints whose configs have keys that this version does not have, or values that it refuses."""

import json

import pytest

from rollax import ARSTrainer, Trainer, __version__, load_policy
from rollax.algorithms.checkpoint import read
from rollax.config.replaced_keys import REPLACED, with_current_keys
from rollax.errors import CheckpointError, ConfigError
from tests.algorithms import forging
from tests.saved.cases import FOLDER

NAMES = ("about.json", "state.json", "arrays.safetensors")


def saved_with(folder, version="0.0.9", **keys):
    """A checkpoint of ARS whose stored configs have other keys; None removes one."""
    files = {name: (FOLDER / "0.1.0/ars" / name).read_bytes() for name in NAMES}
    about = {**json.loads(files["about.json"]), "rollax_version": version}
    for holder in (about, about["policies"]["default_policy"]):
        config = {**holder["config"], **keys}
        holder["config"] = {key: value for key, value in config.items() if value is not None}
    return forging.write({**files, "about.json": json.dumps(about).encode()}, folder)


OPENED = {
    "from_checkpoint": Trainer.from_checkpoint,
    "own class": ARSTrainer.from_checkpoint,
    "with a change": lambda path: Trainer.from_checkpoint(path, seed=5),
    "learn=False": lambda path: Trainer.from_checkpoint(path, learn=False, seed=5),
    "load_policy": load_policy,
}


@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_an_unknown_key_is_an_error_with_the_checkpoint_and_its_version(tmp_path, opened):
    path = saved_with(tmp_path, renamed_key=3)
    with pytest.raises(CheckpointError) as raised:
        opened(path)
    parts = raised.value.parts
    assert f"saved by rollax 0.0.9 with a config that rollax {__version__} refuses" in parts["what"]
    assert "Unknown config key 'renamed_key'" in parts["what"]
    assert str(path) in parts["where"]
    assert parts["got"] == "3"
    assert "rollax==0.0.9" in parts["fix"]


def test_a_refused_value_is_such_an_error_too_and_a_change_may_replace_it(tmp_path):
    path = saved_with(tmp_path, noise_stdev=-2.0)
    message = r"saved by rollax 0.0.9(.|\n)*'noise_stdev'(.|\n)*got: +-2.0"
    for changes in {}, {"seed": 5}, {"gama": 0.5}:
        with pytest.raises(CheckpointError, match=message):
            Trainer.from_checkpoint(path, **changes)
    with Trainer.from_checkpoint(path, noise_stdev=0.5) as trainer:
        assert trainer.config.noise_stdev == 0.5


def test_a_wrong_change_is_an_error_of_the_config(tmp_path):
    with pytest.raises(ConfigError, match="Unknown config key 'gama'"):
        Trainer.from_checkpoint(saved_with(tmp_path), gama=0.5)


def test_one_of_this_version_needs_the_classes_that_saved_it(tmp_path):
    with pytest.raises(CheckpointError, match="fix: +open it with the trainer class"):
        Trainer.from_checkpoint(saved_with(tmp_path, __version__, key_of_an_own_class=3))


def test_keys_of_earlier_versions_are_replaced(tmp_path, monkeypatch):
    for old, new in {"discount": "gamma", "gone": None, "model.hiddens": "model.fcnet_hiddens"}.items():
        monkeypatch.setitem(REPLACED, old, new)
    model = {**read(FOLDER / "0.1.0/ars")["config"]["model"], "hiddens": []}
    del model["fcnet_hiddens"]
    keys = {"discount": 0.25, "gamma": None, "gone": 7, "model": model, "given": ["discount", "gone", "model", "env"]}
    path = saved_with(tmp_path, **keys)
    with Trainer.from_checkpoint(path) as trainer:
        assert trainer.config.gamma == 0.25
        assert trainer.config.model.fcnet_hiddens == ()
        assert trainer.config.model_fields_set == {"gamma", "model", "env"}
        assert trainer.train()["training_iteration"] == 2
    assert load_policy(path).policy.config.gamma == 0.25


def test_keys_are_replaced_in_the_configs_inside_a_config(monkeypatch):
    monkeypatch.setitem(REPLACED, "discount", "gamma")
    monkeypatch.setitem(REPLACED, "gone", None)
    monkeypatch.setitem(REPLACED, "multiagent.train", "multiagent.policies_to_train")
    old = {"discount": 0.5, "gone": 1}
    specs = {"a": None, "b": [None, None, None, old], "c": {"$tuple": [None, None, None, old]}}
    stored = {"evaluation_config": old, "env_config": old, "multiagent": {"policies": specs, "train": ["a"]}}
    spec = [None, None, None, {"gamma": 0.5}]
    assert with_current_keys(stored) == {
        "evaluation_config": {"gamma": 0.5},
        "env_config": old,  # the environment's own keys
        "multiagent": {"policies": {"a": None, "b": spec, "c": {"$tuple": spec}}, "policies_to_train": ["a"]},
    }
