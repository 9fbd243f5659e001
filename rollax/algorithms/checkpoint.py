"""Checkpoints: a trainer's state as JSON and safetensors files. Nothing is pickled."""

from __future__ import annotations

import operator
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from rollax import __version__
from rollax.algorithms.checkpoint_config import (
    arguments_for,
    config_of,
    in_sections,
    refuse_ignored_initial_values_in_specs,
    refuse_learning_only_changes,
)
from rollax.algorithms.registry import ALGORITHMS
from rollax.config import TrainerConfig
from rollax.config.field_group import inherited, refuse_ignored_initial_values
from rollax.config.field_types import written_by_caller
from rollax.config.json_form import (
    cluster_in,
    decode_config,
    import_path,
    missing_code,
    space_from_json,
    space_to_json,
)
from rollax.config.replaced_keys import with_current_keys
from rollax.core import storage
from rollax.core.cleanup import cleanup_on_error
from rollax.core.importing import StoredCode, current_path, named_by_file, path_of
from rollax.core.numbers import all_finite
from rollax.core.spaces import same_action_space, same_space
from rollax.core.stored_values import as_text, with_arrays, without_arrays, wrong_value
from rollax.errors import CheckpointError, NonFiniteError, RollaxError, text_of
from rollax.policy.policy import Policy
from rollax.policy.size_checks import models_as_large_as, weights_in
from rollax.runs.run_folder import newest_checkpoint

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

KIND, FORMAT = "rollax-checkpoint", 3
_TRAINER = ("rollax.algorithms.trainer:Trainer",)
_MOST_ENVS_ANYWAY = 1024  # `num_envs_per_worker` that every checkpoint may have
_PICKLED = frozenset({".pt", ".pth"})
_FILES = frozenset({"about.json", "state.json", "arrays.safetensors"})

_Count = Annotated[StrictInt, Field(ge=0, lt=2**63)]
_Seconds = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class _Policy(BaseModel):
    config: dict[str, Any]
    class_: StrictStr = Field(alias="class")
    observation_space: dict[str, Any]
    action_space: dict[str, Any]


class _About(BaseModel):
    rollax_version: StrictStr
    algorithm: StrictStr
    config: dict[str, Any]
    policies: dict[str, _Policy]
    observation_filter: StrictStr


class _Workers(BaseModel):
    policies: dict[str, dict[str, Any]]
    filters: dict[str, dict[str, Any]]
    sampling: list[dict[str, Any] | None]
    starts: _Count = 1


class _OfCallbacks(BaseModel):
    class_: StrictStr = Field(alias="class")
    state: dict[str, Any]


class _State(BaseModel):
    iteration: _Count
    time_total_s: _Seconds
    env_steps: _Count
    agent_steps: _Count
    version: _Count = 1
    # The entries of EpisodeWindow.state: reward, length, rewards by policy, custom metrics.
    episodes: list[tuple[StrictFloat, _Count, dict[str, list[StrictFloat]], dict[str, StrictFloat | StrictBool]]]
    workers: _Workers
    optimizer: dict[str, Any]
    callbacks: list[_OfCallbacks] | dict[str, Any] = []  # a dict in checkpoints of earlier versions


def write(trainer: Trainer, path: Path) -> Path:
    """Writes the trainer's state into a new folder; `Trainer.save` describes the errors."""
    arrays: dict[str, np.ndarray] = {}
    whole = trainer.get_state()  # kept, because arrays are told apart by `id`, which is reused for new objects
    state = without_arrays(whole, "", arrays, {})
    for policy_id, policy_state in whole["workers"]["policies"].items():
        _refuse_not_finite(policy_state, policy_id, path)
    about = {
        "rollax_version": __version__,
        "algorithm": trainer.name,
        "trainer_class": import_path(type(trainer)),
        "config": trainer.config.to_json(),
        "policies": {policy_id: _described(policy, trainer) for policy_id, policy in trainer.worker.policies.items()},
        "observation_filter": trainer.config.observation_filter,
    }
    files = {
        "about.json": storage.to_json_bytes(about),
        "state.json": storage.to_json_bytes(state),
        "arrays.safetensors": storage.arrays_to_bytes(arrays),
    }
    return storage.write_directory(path, files, kind=KIND, format_version=FORMAT)


def _refuse_not_finite(state: Mapping[str, Any], policy_id: str, path: Path) -> None:
    for part in ("weights", "targets", "optimizer"):
        for name, value in (state.get(part) or {}).items():
            array = np.asarray(value)
            if array.dtype.name == "bfloat16":  # which is no kind of float for NumPy
                array = array.astype(np.float32)
            if array.dtype.kind == "f" and not all_finite(array):
                raise NonFiniteError(
                    "The policy has numbers that are not finite, so it is not saved.",
                    f"{path}, policy {policy_id!r}, {part}, {name}",
                    array[~np.isfinite(array)].flat[0],
                ).expected(
                    "finite numbers",
                    "restore the last checkpoint, and lower lr or set grad_clip; or find the code that set the numbers",
                )


def checkpoint_at(path: Any, where: str) -> Path:
    """Returns the checkpoint at a path: the folder itself, or the newest one in a folder of checkpoints or of a run.

    A run may remove its checkpoint at any time, so callers read it at once.

    Raises:
        CheckpointError: `path` is another object, or leads to nothing or to a folder without a checkpoint.
    """
    if isinstance(path, str | os.PathLike):
        return Path(path) if os.path.isfile(path) else newest_checkpoint(Path(path))
    raise CheckpointError("This is not the path of a checkpoint.", where, path).expected(
        "the path of a folder", "pass what trainer.save('checkpoints') returns, or trainer.fit(...).checkpoint"
    )


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a checkpoint: algorithm, config, policies (classes, spaces), and `state` with arrays."""
    if path.suffix in _PICKLED:
        raise _pickled(path)
    files = storage.read_directory(path, kind=KIND, format_version=FORMAT)
    if (found := storage.read_manifest(path)["format_version"]) < FORMAT:
        about = storage.from_json_bytes(files.get("about.json", b"{}"), where=str(path / "about.json"))
        saved_by = about.get("rollax_version") if isinstance(about, dict) else None
        # One version has several formats while it is developed.
        version = (
            f"{'an earlier state of ' if saved_by == __version__ else ''}rollax {saved_by or 'of unknown version'}"
        )
        raise CheckpointError(
            "The checkpoint has an older format.", path, f"format {found}, saved by {version}"
        ).expected(f"format {FORMAT}, of rollax {__version__}", "open it with the rollax that saved it, or train again")
    if missing := _FILES - files.keys():
        raise wrong_value(
            str(path), sorted(files), f"the files {sorted(_FILES)}, of which {sorted(missing)} are missing"
        )
    about, state = (
        storage.from_json_bytes(files[name], where=str(path / name)) for name in ("about.json", "state.json")
    )
    arrays = storage.bytes_to_arrays(files["arrays.safetensors"], where=str(path / "arrays.safetensors"))
    state = with_arrays(state, arrays, str(path / "state.json"))
    _check(_About, about, path / "about.json")
    _check(_State, state, path / "state.json")
    for part in ("policies", "filters"):
        if state["workers"][part].keys() != about["policies"].keys():
            raise wrong_value(
                f"{path / 'state.json'}: workers.{part}", sorted(state["workers"][part]), f"{sorted(about['policies'])}"
            )
    for holder in (about, *about["policies"].values()):
        holder["config"] = with_current_keys(holder["config"])
    for description in about["policies"].values():
        description["class"] = current_path(description["class"])
    return {**about, "state": state}


def _pickled(path: Path) -> CheckpointError:
    """Returns the error for a file of `torch.save`."""
    return CheckpointError(
        "Files of PyTorch are not read: they are pickles, which may run code.", str(path), path.suffix
    ).expected(
        "a checkpoint folder of rollax",
        # load_state_dict takes tied weights under all of their names; set_weights also sets the target parameters.
        "if you trust the file, load it as the state dict of a TorchPolicy's model: "
        f"`policy.model.load_state_dict(torch.load({str(path)!r}, weights_only=True)); "
        "policy.set_weights(policy.get_weights())`",
    )


def restore(trainer: Trainer, stored: Mapping[str, Any], path: Path, fix: str | None = None) -> None:
    """Sets a trainer's state from what `read(path)` returned; `Trainer.restore` describes the errors.

    `fix`: the advice in the error if the checkpoint does not fit the trainer, by default to use a trainer that fits.
    """
    fix = (
        fix or "restore it into a trainer with the same algorithm, policies and spaces, or use Trainer.from_checkpoint"
    )
    check_same("algorithm", stored["algorithm"], trainer.name, path, fix)
    check_same("observation_filter", stored["observation_filter"], trainer.config.observation_filter, path, fix)
    policies, state = trainer.worker.policies, stored["state"]
    if stored["policies"].keys() != policies.keys():
        from rollax.algorithms.policy_changes import of_policies, warn_of_others  # loaded only where it is used

        if stored["policies"].keys().isdisjoint(policies):
            check_same("set of policies", sorted(stored["policies"]), sorted(policies), path, fix)
        state = of_policies(state, policies)
        warn_of_others(stored["policies"], policies, path)
    for policy_id in state["workers"]["policies"]:
        description = stored["policies"][policy_id]
        for kind, same in (("observation_space", same_space), ("action_space", same_action_space)):
            space = space_from_json(description[kind], f"{path / 'about.json'}: policies.{policy_id}.{kind}")
            check_same(f"{kind} of policy {policy_id!r}", space, getattr(policies[policy_id], kind), path, fix, same)
    with errors_as_damaged(path):
        trainer.set_state(state)
    trainer.recorded_in = path.resolve().parent.parent, trainer.iteration


def opened(
    path: Path, trainer_class: type[Trainer] | None, changes: Mapping[str, Any], *, trust_code: bool, learn: bool
) -> Trainer:
    """Returns a trainer restored from a checkpoint; `Trainer.from_checkpoint` describes the arguments and errors.

    If `trainer_class` is None, the trainer has the class that saved the checkpoint.
    """
    stored = read(path)
    fix = "open it with its own class: YourTrainer.from_checkpoint(path) (--run=module:YourTrainer)"
    own: Any = trainer_class or trainer_class_of(stored, path, trust_code=trust_code, fix=fix)
    check_same("algorithm", stored["algorithm"], own.name, path, "use Trainer.from_checkpoint, for any algorithm")
    folders = inherited(own.config_class, "folders")
    if not learn:  # evaluation writes no experience and decodes no data
        stored["config"].update((key, None) for key in folders if key in stored["config"])
    changes = in_sections(written_by_caller(changes), stored["config"], trust_code=trust_code)
    refuse_untrusted(path, stored["config"], changes, trust_code=trust_code)
    if not trust_code:
        _refuse_untrusted_folders(path, folders, stored["config"], changes)
    if not learn:
        refuse_learning_only_changes(own.config_class, stored, path, changes, trust_code=trust_code)
    config = config_of(own.config_class, stored["config"], stored, path, trust_code=trust_code, **changes)
    refuse_ignored_initial_values(config, changes, stored["config"], path)
    if "num_envs_per_worker" not in changes:
        _refuse_many_envs(path, config.num_envs_per_worker, stored["state"]["workers"]["sampling"])
    trainer = own.__new__(own)
    if not learn:
        evaluates = {"evaluation_num_workers": changes.get("evaluation_num_workers", 0)}
        alone = {"num_workers": 0, "evaluation_parallel_to_training": False}
        trainer._evaluates_only, config = True, config.changed(**alone, **evaluates)
    with models_as_large_as(map(weights_in, stored["state"]["workers"]["policies"].values())):
        trainer.__init__(config=config)
    with cleanup_on_error(trainer.stop):
        if "multiagent" in changes:
            refuse_ignored_initial_values_in_specs(trainer.worker.policies, stored["policies"], path)
        changed = f"; changed here: {', '.join(changes)}" if changes else ""
        restore(trainer, stored, path, f"open it with the environment and config of the saved run{changed}")
    return trainer


@contextmanager
def errors_as_damaged(path: str | Path) -> Iterator[None]:
    """Turns errors while a checkpoint is restored, except RollaxErrors, into a CheckpointError with their location."""
    try:
        yield
    except RollaxError:
        raise
    except Exception as error:
        raise CheckpointError.damaged(
            f"{path}, {_innermost(error)}",
            f"{type(error).__name__}: {text_of(error)}",
            "the state as it was saved",
            "The saved state cannot be restored.",
        ) from error


def trainer_class_of(
    stored: Mapping[str, Any], path: str | Path, *, trust_code: bool, fix: str = "pass trainer_class=YourTrainer"
) -> type[Trainer]:
    """Returns the class of the trainer that saved a checkpoint: a built-in class, or a trusted custom class.

    `fix`: how the caller can give an untrusted class.
    """
    named = stored.get("trainer_class", ALGORITHMS.get(stored["algorithm"]))
    code: Any = StoredCode("trainer_class", None)
    if isinstance(named, str):
        code = named_by_file(named, "trainer_class", base=_TRAINER, trusted=trust_code)
    if isinstance(code, StoredCode):
        raise untrusted(path, code, fix)
    if not isinstance(code, type) or _TRAINER[0] not in map(path_of, code.__mro__):
        raise CheckpointError(
            "The class that the checkpoint names is not a trainer class.", f"{path}: trainer_class", named
        ).expected("the path of a subclass of rollax.Trainer", "use a checkpoint that a trainer has saved")
    return code


def refuse_untrusted(
    path: str | Path, config: Mapping[str, Any], given: Mapping[str, Any], *, trust_code: bool
) -> None:
    """Raises CheckpointError unless the caller passes or trusts the code and the Ray cluster that the config names."""
    values = decode_config(config, trust="everything" if trust_code else "nothing")
    values = {**values, **given}
    if missing := sorted(missing_code(values), key=lambda code: code.path is not None):  # code without a path first
        raise untrusted(path, missing[0], f"pass {arguments_for(missing)}")
    cluster = None if trust_code else cluster_in({name: part for name, part in values.items() if name not in given})
    if cluster is not None:
        raise CheckpointError.untrusted(
            "The checkpoint names a Ray cluster, which is not joined",
            f"{path}: config key '{cluster[0]}'",
            cluster[1],
            "the address from the caller",
            f"pass {cluster[0].partition('.')[0]}=..., with a trusted address, or without one to join no cluster",
        )


def _refuse_untrusted_folders(
    path: Path, folders: Mapping[str, str], config: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    for key, without in folders.items():
        if config.get(key) is not None and key not in given:
            raise CheckpointError.untrusted(
                "The checkpoint names a folder, into which nothing is written",
                f"{path}: config key '{key}'",
                config[key],
                "the folder from the caller",
                f"pass {key}=..., {without}",
            )


def _refuse_many_envs(path: Path, number: int, sampling: Sequence[Mapping[str, Any] | None]) -> None:
    """Raises CheckpointError if `number` is above 1024 and above the number in each of the saved `sampling` states."""
    begun = (np.size(state["episodes_begun"]) for state in sampling if state and "episodes_begun" in state)
    most = max(_MOST_ENVS_ANYWAY, *begun, 0)
    if number > most:
        raise CheckpointError(
            "The checkpoint asks for more sub-environments than its workers had.",
            f"{path}: config key 'num_envs_per_worker'",
            number,
        ).expected(f"at most {most}", "pass num_envs_per_worker=..., or use another copy of the checkpoint")


def untrusted(path: str | Path, code: StoredCode, fix: str) -> CheckpointError:
    """Returns the error for code that is not trusted or not stored; `fix` says how the caller can pass the code."""
    trusting = ", or trust_code=True (--trust-code) if you trust where the checkpoint comes from" if code.path else ""
    return CheckpointError(
        "The checkpoint names the user's own code, which is not imported without trust in the file."
        if code.path
        else "The checkpoint names the user's own code, which cannot be imported: a lambda, or code of a main script.",
        where=f"{path}: config key '{code.key}'",
        got=code.shown,
        expected="the class or function itself" + (", or trust_code=True" if code.path else ""),
        fix=f"{fix}{trusting}",
    )


def check_same(
    what: str, got: Any, expected: Any, path: str | Path, fix: str, same: Callable[[Any, Any], bool] = operator.eq
) -> None:
    """Raises CheckpointError unless the checkpoint was saved with the trainer's value."""
    if not same(got, expected):
        raise CheckpointError(
            f"The checkpoint was saved with a different {what} than this trainer has.", str(path), got
        ).expected(expected, fix)


def _described(policy: Policy, trainer: Trainer) -> dict[str, Any]:
    # A custom policy may have any object as its config.
    config = policy.config if isinstance(policy.config, TrainerConfig) else trainer.config
    return {
        "config": config.to_json(),
        "class": path_of(policy.made_by),
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }


def _check(model: type[BaseModel], values: Any, file: Path) -> None:
    try:
        model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise wrong_value(f"{file}: {key}", as_text(first["input"]), first["msg"]) from None


def _innermost(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).stem}.{frame.name}"
