"""Forged checkpoints: no value runs code, breaks a trainer, or raises an unnamed error."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from jax import core

from rollax import DQNTrainer, PPOTrainer, Trainer, load_policy
from rollax.errors import CheckpointError, PolicyError, RollaxError
from rollax.models import layers
from tests.algorithms import forging
from tests.algorithms.forging import COMMAND, VALUES, arrays_of, bytes_of, nested, paths_in, replaced, write
from tests.env.refused import refused

COMMON: dict[str, Any] = {"num_envs_per_worker": 2, "model": {"fcnet_hiddens": (4,)}, "seed": 1}
OF_PPO = {**COMMON, "train_batch_size": 16, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "kl_coeff": 0.2}
OF_PPO |= {"observation_filter": "MeanStdFilter", "evaluation_config": {"explore": True}}
OF_DQN = {**COMMON, "train_batch_size": 8, "rollout_fragment_length": 4, "learning_starts": 8, "buffer_size": 64}
OF_DQN |= {"timesteps_per_iteration": 40, "n_step": 2, "store_buffer_in_checkpoints": True}
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {"PPO": (PPOTrainer, OF_PPO), "DQN": (DQNTrainer, OF_DQN)}
COSTLY = {"num_workers", "num_envs_per_worker", "remote_worker_envs", "num_gpus", "ray_address", "fcnet_hiddens"}
"""Config keys whose values may cost processes, environments or memory."""


class Forge:
    """A real checkpoint, and a trainer that restores forged ones."""

    def __init__(self, name: str, folder: Path) -> None:
        trainer_class, config = CONFIGS[name]
        self.folder = folder
        with trainer_class("CartPole-v1", config) as trainer:
            trainer.train()
            trainer.train()
            path = trainer.save(folder)
        self.files = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "manifest.json"}
        self.documents = {name: json.loads(self.files[name]) for name in ("about.json", "state.json")}
        self.arrays = arrays_of(self.files["arrays.safetensors"])
        self.trainer = trainer_class("CartPole-v1", config)
        self.trainer.train()
        self.before = plain(self.trainer.get_state())

    def changes(self) -> st.SearchStrategy[tuple[Any, Any]]:
        """A path in a document, or the name of an array, and its replacement."""
        found = [(name, at) for name in self.documents for at in paths_in(self.documents[name]) if not COSTLY & set(at)]
        documents = st.tuples(st.sampled_from(found), st.sampled_from([*VALUES, nested(90), nested(200), ...]))
        arrays = st.sampled_from(
            [(name, new) for name in self.arrays for new in forging.other_arrays(self.arrays[name])]
        )
        return st.one_of(documents, documents, arrays)

    def changed(self, change: tuple[Any, Any]) -> dict[str, bytes]:
        """The files after a change."""
        return self.with_array(*change) if isinstance(change[0], str) else self.with_value(*change)

    def with_value(self, place: tuple[str, tuple[Any, ...]], new: Any) -> dict[str, bytes]:
        """The files with another value at a path of a document."""
        name, at = place
        return {**self.files, name: json.dumps(replaced(self.documents[name], at, new)).encode()}

    def with_array(self, name: str, new: np.ndarray | None) -> dict[str, bytes]:
        """The files with another array; None removes it."""
        arrays = {key: array for key, array in self.arrays.items() if key != name}
        return {**self.files, "arrays.safetensors": bytes_of(arrays if new is None else {**arrays, name: new})}

    def check(self, files: dict[str, bytes], *, train: bool) -> None:
        """Everything that opens the checkpoint either works or raises a named error."""
        path = write(files, self.folder)
        with suppress(RollaxError), Trainer.from_checkpoint(path) as trainer:
            if train:
                trainer.train()
        with suppress(RollaxError):
            load_policy(path).compute_single_action(np.zeros(4, np.float32))
        try:
            self.trainer.restore(path)
        except RollaxError:
            assert plain(self.trainer.get_state()) == self.before
        else:
            self.before = plain(self.trainer.get_state())


def plain(state: Any) -> str:
    """A state as text, in which NaN equals NaN."""

    def values(part: Any) -> Any:
        if isinstance(part, dict):
            # Numbers of trajectories only grow, so that they are unique.
            return {key: values(value) for key, value in part.items() if key != "next_trajectory_id"}
        if isinstance(part, list | tuple):
            return [values(value) for value in part]
        return np.asarray(part).tolist() if hasattr(part, "__array__") else part

    return repr(values(state))


@pytest.fixture(autouse=True)
def _without_commands(monkeypatch, tmp_path):
    forging.refuse_commands(monkeypatch)
    monkeypatch.chdir(tmp_path)  # a forged `output` is a folder to write to


@pytest.fixture(scope="module", params=CONFIGS)
def forge(request, tmp_path_factory):
    return Forge(request.param, tmp_path_factory.mktemp("forged"))


@pytest.mark.long
@pytest.mark.parametrize(("examples", "train"), [(15, False), (60, True)])
def test_forged_values(forge, examples, train):
    checked = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    checked(seed(1)(given(forge.changes())(lambda change: forge.check(forge.changed(change), train=train))))()


CODE = [
    (("config", "env"), COMMAND),
    (("config", "env"), "rollax.env.recording:subprocess.run"),
    (("config", "env"), "os:system"),
    (("config", "evaluation_config", "env"), COMMAND),
    (
        ("config", "multiagent"),
        {"policies": {"a": None}, "policy_mapping_fn": {"$code": "rollax.core.storage:os.system"}},
    ),
    (("config", "callbacks"), {"$code": "rollax.core.storage:os.system"}),
    (("config", "callbacks"), {"$code": "rollax.env.recording:RecordingCreator"}),
    (("config", "model", "custom_model"), "rollax.core.storage:shutil.rmtree"),
    (("config", "ray_address"), "ray://evil:10001"),
]


@pytest.mark.short(every=5)
@pytest.mark.parametrize(("at", "code"), CODE, ids=str)
def test_code_is_refused_before_a_trainer_is_made(forge, at, code):
    path = write(forge.with_value(("about.json", at), code), forge.folder)
    refused(CheckpointError, Trainer.from_checkpoint, path, says=f"config key '{'.'.join(at[1:])}...trust_code=True")


def test_the_error_for_a_ray_cluster_is_not_that_for_code(forge):
    path = write(forge.with_value(("about.json", ("config", "ray_address")), "ray://evil:10001"), forge.folder)
    refused(CheckpointError, Trainer.from_checkpoint, path, says="names a Ray cluster...got:      ray://evil:10001\n")
    Trainer.from_checkpoint(path, ray_address=None).stop()


@pytest.fixture
def no_large_weights(monkeypatch):
    """Fails as soon as a large matrix is allocated for a model."""
    initialize = layers._orthogonal

    def initialize_small(key: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(key, core.Tracer) or np.prod(shape) < 1 << 20
        return initialize(key, shape, *args, **kwargs)

    monkeypatch.setattr(layers, "_orthogonal", initialize_small)


LARGE = {"fcnet_hiddens": [12_000, 12_000]}


@pytest.mark.short("DQN")
@pytest.mark.usefixtures("no_large_weights")
def test_a_model_that_is_larger_than_the_weights_is_not_built(forge):
    about = forge.documents["about.json"]
    model = {**about["config"]["model"], **LARGE}
    policy = about["policies"]["default_policy"]
    policy = {**policy, "config": {**policy["config"], "model": model}}
    of_trainer = {"about.json": json.dumps(replaced(about, ("config", "model"), model)).encode()}
    of_policy = {"about.json": json.dumps(replaced(about, ("policies", "default_policy"), policy)).encode()}
    of_evaluation = replaced(about, ("config", "evaluation_config"), {"model": model})
    for files in (of_trainer, {"about.json": json.dumps(of_evaluation).encode()}):
        path = write({**forge.files, **files}, forge.folder)
        for learn in (True, False):
            refused(RollaxError, Trainer.from_checkpoint, path, says="larger than the stored weights", learn=learn)
    with pytest.raises(PolicyError, match="larger than the stored weights"):
        load_policy(write({**forge.files, **of_policy}, forge.folder))


def test_more_gradient_steps_than_can_be_counted_are_refused(forge):
    at = ("workers", "policies", "default_policy", "num_updates")
    path = write(forge.with_value(("state.json", at), 2**31 - 1), forge.folder)
    refused(CheckpointError, Trainer.from_checkpoint, path, says="num_updates")


@pytest.mark.short("PPO-False")
@pytest.mark.parametrize("learn", [True, False])
def test_more_sub_environments_than_the_workers_had_are_not_made(forge, learn):
    files = forge.with_value(("about.json", ("config", "num_envs_per_worker")), 1025)
    path = write(files, forge.folder)
    with pytest.raises(CheckpointError, match="more sub-environments than its workers had"):
        Trainer.from_checkpoint(path, learn=learn)
    Trainer.from_checkpoint(path, learn=learn, num_envs_per_worker=3).stop()
    begun = forge.with_array("/workers/sampling/0/episodes_begun", np.ones(1025, np.int64))
    write({**files, "arrays.safetensors": begun["arrays.safetensors"]}, forge.folder)
    with Trainer.from_checkpoint(path, learn=learn) as trainer:
        assert trainer.config.num_envs_per_worker == 1025


@pytest.mark.short("PPO-output")
@pytest.mark.parametrize("key", ["output", "input_folder"])
def test_no_folder_is_written_without_trust(forge, key, tmp_path):
    if key not in forge.documents["about.json"]["config"]:
        return
    files = forge.with_value(("about.json", ("config", key)), str(tmp_path / "chosen" / "by the file"))
    path = write(files, forge.folder)
    with pytest.raises(CheckpointError, match=key):
        Trainer.from_checkpoint(path)
    with Trainer.from_checkpoint(path, learn=False) as trainer:
        trainer.evaluate(1)
    with Trainer.from_checkpoint(path, **{key: None}) as trainer:
        trainer.train()
    assert not (tmp_path / "chosen").exists()


def test_a_folder_is_written_with_trust(forge, tmp_path):
    path = write(forge.with_value(("about.json", ("config", "output")), str(tmp_path / "out")), forge.folder)
    for arguments in ({"trust_code": True}, {"output": str(tmp_path / "out")}):
        before = len(list(tmp_path.glob("out/*")))
        with Trainer.from_checkpoint(path, **arguments) as trainer:
            trainer.train()
        assert len(list(tmp_path.glob("out/*"))) > before


POLICIES = ["rollax.core.storage:os.system", "rollax.policy.policy:Policy", "rollax.policy.jax_policy:Policy", "x", ""]


@pytest.mark.parametrize("path", POLICIES)
def test_only_policy_classes_are_accepted(forge, path):
    place = ("about.json", ("policies", "default_policy", "class"))
    with pytest.raises(CheckpointError, match=r"'policy_class'(.|\n)*policy_class="):
        load_policy(write(forge.with_value(place, path), forge.folder))


def test_files_that_are_no_checkpoint_are_refused(forge):
    for files in (
        {},
        {"about.json": forge.files["about.json"]},
        *({**forge.files, name: b""} for name in forge.files),
        *({**forge.files, name: b"[]"} for name in forge.files),
        *({**forge.files, name: b'{"a": 1, "a": 2}'} for name in forge.files),
        *({**forge.files, name: b"[" * 100_000} for name in forge.files),
    ):
        path = write(files, forge.folder)
        for opened in (Trainer.from_checkpoint, load_policy, forge.trainer.restore):
            refused(CheckpointError, opened, path)
    manifest = json.loads((write(forge.files, forge.folder) / "manifest.json").read_text())
    outside = forge.folder.parent / "outside"
    outside.write_bytes(forge.files["about.json"])
    entry = manifest["files"]["about.json"]
    for changes in (
        {"files": {**manifest["files"], "../outside": entry}},
        {"files": {**manifest["files"], str(outside): entry}},
        {"files": {**manifest["files"], "about.json": {**entry, "size": "many"}}},
        {"files": {**manifest["files"], "about.json": {**entry, "sha256": None}}},
        {"files": [*manifest["files"]]},
        {"files": {}},
        {"kind": 3},
        {"kind": "policy"},
        {"format_version": True},
        {"format_version": 10**30},
        {"format_version": -1},
    ):
        (forge.folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        refused(CheckpointError, Trainer.from_checkpoint, forge.folder)
