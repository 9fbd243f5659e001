"""Names of code in every field of files and answers of servers: without trust no module of them is imported.

Each place of a stored config gets names that would be imported, or called, wherever a string of a file reaches an
import. Opening it may succeed or raise a named error; no import is attempted, and no command runs.
"""

import importlib.abc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rollax import DQNTrainer, PolicyServerEnv, PPOConfig, PPOTrainer, Trainer, load_policy, open_dataset
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.cli.training import make_trainer
from rollax.config import TrainerConfig
from rollax.config.json_form import decode_config, missing_code
from rollax.errors import RollaxError
from rollax.runs.experiment import override, read_experiment
from rollax.serving.policy_backend import PolicyBackend
from rollax.serving.weights import policy_from_bytes, policy_to_bytes, read_description
from tests.algorithms.forging import paths_in, refuse_commands, replaced, write

MARK = "leaves_a_mark"
ID = f"{MARK}:Env-v0"
NAMES: list[Any] = [
    *(ID, f" {ID}", MARK, f"ALE/{ID}", f"pettingzoo/{ID}", "subprocess:run"),
    *([ID], {"a": ID}, {"grid_search": [ID]}, {ID: 1.0}),
    *({"$code": ID}, {"$path": ID}, {"$tuple": [ID]}, {"$dict": [["env", ID]]}, {"$array": ID, "dtype": "U30"}),
]
INSIDE: list[tuple[Any, ...]] = [
    *(("env_config", name) for name in ("spaces_of", "env", "env_id", "id", "entry_point")),
    *(("input_config", name) for name in ("format", "env", "observation_space", "action_space")),
    ("model", "custom_model_config", "model"),
    ("callbacks", 0),
    ("multiagent", "policies", "default_policy", 0),
    ("multiagent", "policies", "default_policy", 3, "env"),
    ("multiagent", "policies", "default_policy", 3, "model", "custom_model"),
    ("multiagent", "shared_variables", "a", "parts"),
    *(("evaluation_config", name) for name in ("env", "callbacks", "sampler", "observation_space")),
    ("evaluation_config", "env_config", "spaces_of"),
    ("evaluation_config", "model", "custom_model"),
    ("evaluation_config", "multiagent", "policy_mapping_fn"),
]
"""Places inside of fields that are empty by default."""
CONFIG: dict[str, Any] = {"model": {"fcnet_hiddens": (4,)}, "seed": 1, "learning_starts": 8, "train_batch_size": 8}
CONFIG |= {"buffer_size": 64, "timesteps_per_iteration": 8, "evaluation_num_episodes": 1}


class Watch(importlib.abc.MetaPathFinder):
    """Keeps the names of modules that something tries to import, if they contain the mark."""

    def __init__(self) -> None:
        self.imported: list[str] = []

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if MARK in fullname:
            self.imported.append(fullname)


@pytest.fixture
def watch(monkeypatch, tmp_path):
    refuse_commands(monkeypatch)
    monkeypatch.chdir(tmp_path)  # a forged `output` is a folder to write to
    watch = Watch()
    monkeypatch.setattr(sys, "meta_path", [watch, *sys.meta_path])
    yield watch
    assert watch.imported == []


class Forge:
    """A real checkpoint of DQN, whose config has names of code at one place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder / "checkpoint", str(folder / "data.csv")
        rows = [f"{t},0,0,0,0,{t % 2},1,{int(t == 9)}" for t in range(10)]
        Path(self.data).write_text("\n".join(["t,obs_0,obs_1,obs_2,obs_3,action,reward,terminated", *rows]))
        self.trainer = DQNTrainer("CartPole-v1", CONFIG)
        path = self.trainer.save(folder)
        self.files = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "manifest.json"}
        self.about = json.loads(self.files["about.json"])
        self.served = policy_to_bytes(self.trainer.worker.runners["default_policy"], 0)
        self.folder.mkdir()

    def config(self, at: tuple[Any, ...], name: Any) -> dict[str, Any]:
        """The stored config with a name at one place; settings of data are beside data."""
        source = {"input": self.data} if at[0] == "input_config" else {}
        return with_name({**self.about["config"], **source}, at, name)

    def open(self, config: dict[str, Any]) -> None:
        """Opens it in every way."""
        (policy,) = self.about["policies"].values()
        about = {**self.about, "config": config, "policies": {"default_policy": {**policy, "config": config}}}
        path = write({**self.files, "about.json": json.dumps(about).encode()}, self.folder)
        file = self.folder / "run.json"
        file.write_text(json.dumps({"run": "DQN", "config": config}))
        ways: list[Callable[[], Any]] = [
            lambda: Trainer.from_checkpoint(path),
            lambda: DQNTrainer.from_checkpoint(path, env="CartPole-v1"),
            lambda: DQNTrainer.from_checkpoint(path, input=self.data),
            lambda: Trainer.from_checkpoint(path, learn=False),
            lambda: make_trainer(override(read_experiment(file), run=None, env=None, config={}, stop={}), None, False),
        ]
        for way in ways:
            with suppress(RollaxError), way() as trainer:
                trainer.evaluate(1)
        for opened in (load_policy, PolicyBackend.from_checkpoint, self.trainer.restore):
            with suppress(RollaxError):
                opened(path)
        with suppress(RollaxError):
            policy_from_bytes(self.serve(config))
        with suppress(RollaxError):
            make_trainer(override(read_experiment(file), run=None, env=None, config={}, stop={}), path, False).stop()

    def serve(self, config: dict[str, Any]) -> bytes:
        """What a hostile server would answer a client that acts with its weights."""
        description = json.dumps({**read_description(self.served), "config": config})
        length = int.from_bytes(self.served[:8], "little")
        header = json.loads(self.served[8 : 8 + length])
        header["__metadata__"]["rollax"] = description
        changed = json.dumps(header).encode()
        return len(changed).to_bytes(8, "little") + changed + self.served[8 + length :]


def with_name(config: dict[str, Any], at: tuple[Any, ...], name: Any) -> dict[str, Any]:
    """The config with a name at a place, whose holders are made where they are missing."""
    for depth in range(1, len(at)):
        holder: Any = config
        for key in at[: depth - 1]:
            holder = holder[key]
        empty: Any = [None] * 4 if at[depth] in (0, 3) else {}
        if not (holder[at[depth - 1]] if isinstance(at[depth - 1], int) else holder.get(at[depth - 1])):
            config = replaced(config, at[:depth], empty)
    config = replaced(config, at, name)
    return {**config, "given": sorted({*config["given"], at[0]})}


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    forge = Forge(tmp_path_factory.mktemp("forged"))
    yield forge
    forge.trainer.stop()


def surviving_fields(config_class: type[TrainerConfig], seen: set[Any]) -> Iterator[str]:
    """The fields, of those that were not seen before, in which a path of code is no error and no `StoredCode`."""
    stored = json.loads(json.dumps(config_class().to_json()))
    for at in paths_in(stored):
        field = at[0] if at[0] != "lambda" else "lambda_"
        if field == "given" or (known := (at, str(config_class.model_fields[field].annotation))) in seen:
            continue
        seen.add(known)
        config = with_name(stored, at, ID)
        with suppress(RollaxError):
            config_class.from_json(config)
            if not any(missing_code(decode_config(config))):
                yield ".".join(map(str, at))


SURVIVING = {"output", "input", "input_folder", "off_policy_estimation_input", "ray_address", "state_key"}
"""Fields with any string. All but `ray_address`, which is refused by itself, hold paths or keys of observations."""


def test_a_path_of_code_is_refused_in_all_other_fields_of_all_algorithms():
    seen: set[Any] = set()
    found = {field for name in ALGORITHMS for field in surviving_fields(get_trainer_class(name).config_class, seen)}
    assert found == SURVIVING
    assert len(seen) > 150


@pytest.mark.short("('input',)", "('off_policy_estimation_input',)", "('model', 'custom_model_config', 'model')")
@pytest.mark.parametrize("at", [*((field,) for field in sorted(SURVIVING - {"state_key"})), *INSIDE], ids=str)
def test_no_name_is_imported(forge, watch, at):
    forge.open(forge.config(at, ID))


@pytest.mark.long
def test_no_name_is_imported_at_any_place(forge, watch):
    places = [at for at in paths_in(forge.about["config"]) if at[0] not in ("given", "num_workers")]
    closely = {*INSIDE, ("env",), ("input",), ("model",), ("callbacks",), ("sampler",), ("evaluation_config",)}
    for at in [*places, *INSIDE]:
        for name in NAMES if at in closely else (ID, [ID], {"env": ID}):
            forge.open(forge.config(at, name))


@pytest.mark.short("leaves_a_mark:Env-v0")
@pytest.mark.parametrize(
    "name", [*NAMES[:3], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[3:])], ids=str
)
def test_no_name_beside_the_config_is_imported(forge, watch, name):
    for at in (("algorithm",), ("trainer_class",), ("policies", "default_policy", "class"), ("observation_filter",)):
        path = write({**forge.files, "about.json": json.dumps(replaced(forge.about, at, name)).encode()}, forge.folder)
        for opened in (Trainer.from_checkpoint, load_policy, PolicyBackend.from_checkpoint):
            with suppress(RollaxError):
                opened(path)


def test_a_value_of_the_caller_releases_no_other_name(forge, watch):
    config = forge.config(("model", "custom_model"), ID)
    path = write({**forge.files, "about.json": json.dumps({**forge.about, "config": config}).encode()}, forge.folder)
    with pytest.raises(RollaxError, match=r"'model.custom_model'"):
        Trainer.from_checkpoint(path, env="CartPole-v1", env_config={}, model={"max_seq_len": 4})
    with Trainer.from_checkpoint(path, model={"custom_model": None}) as trainer:
        assert trainer.config.model.fcnet_hiddens == (4,)


@pytest.mark.parametrize("name", [ID, f" {ID}", "subprocess:run"])
def test_a_caller_may_name_code(watch, forge, name):
    """The same names are imported where the caller wrote them."""
    tries: list[Callable[[], Any]] = [
        lambda: PPOTrainer(name),
        lambda: PPOTrainer("CartPole-v1", {"model": {"custom_model": name}}),
        lambda: PPOTrainer(config=PPOConfig(env="CartPole-v1").changed(env=name)),
        lambda: PPOTrainer(PolicyServerEnv, {"env_config": {"spaces_of": name}}),
        lambda: open_dataset(forge.data, format=name),
    ]
    if name == "subprocess:run":  # is imported already, so it is called
        for tried in (tries[0], tries[-1]):
            with pytest.raises((SystemError, RollaxError), match="a command ran"):
                tried()
        return
    for tried in tries:
        with pytest.raises(RollaxError, match="cannot be imported"):
            tried()
        assert watch.imported.pop().strip() == MARK
        watch.imported.clear()
