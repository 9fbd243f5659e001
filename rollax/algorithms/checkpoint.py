"""Checkpoints: a trainer's state as JSON and safetensors, and back. Nothing is pickled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax import __version__, storage
from rollax.config import TrainerConfig
from rollax.env.registry import registered_envs
from rollax.errors import CheckpointError
from rollax.policy.policy import Policy
from rollax.spaces import same_space, space_from_json, space_to_json

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

KIND, FORMAT = "rollax-checkpoint", 1
_ARRAY, _FLOAT = "$array", "$float"


def write(trainer: Trainer, path: Path) -> Path:
    """Writes the trainer's state into a new folder.

    Raises:
        CheckpointError: it could not be written whole.
    """
    arrays: dict[str, np.ndarray] = {}
    state = _without_arrays(trainer.get_state(), "", arrays)
    about = {
        "rollax_version": __version__,
        "algorithm": trainer.name,
        "config": trainer.config.to_json(),
        "policies": {policy_id: _described(policy) for policy_id, policy in trainer.worker.policies.items()},
        "observation_filter": trainer.config.observation_filter,
    }
    files = {
        "about.json": storage.to_json_bytes(about),
        "state.json": storage.to_json_bytes(state),
        "arrays.safetensors": storage.arrays_to_bytes(arrays),
    }
    return storage.write_directory(path, files, kind=KIND, format_version=FORMAT)


def read(path: Path) -> dict[str, Any]:
    """What a checkpoint holds: algorithm, config, policies (their classes and spaces), and `state` with its arrays.

    Raises:
        CheckpointError: it is missing, damaged, or newer than this version.
    """
    files = storage.read_directory(path, kind=KIND, format_version=FORMAT)
    about = storage.from_json_bytes(files["about.json"], where=str(path / "about.json"))
    state = storage.from_json_bytes(files["state.json"], where=str(path / "state.json"))
    arrays = storage.bytes_to_arrays(files["arrays.safetensors"], where=str(path / "arrays.safetensors"))
    return {**about, "state": _with_arrays(state, arrays)}


def restore(trainer: Trainer, path: Path) -> None:
    """Gives a checkpoint's state to a trainer, whose config stays as it is.

    Raises:
        CheckpointError: it is damaged, newer, or made by another algorithm or with other policies, spaces or filters.
    """
    stored = read(path)
    check_algorithm(stored, trainer.name, path)
    _check_same("observation_filter", stored["observation_filter"], trainer.config.observation_filter, path)
    policies = trainer.worker.policies
    _check_same("set of policies", sorted(stored["policies"]), sorted(policies), path)
    for policy_id, description in stored["policies"].items():
        for kind in ("observation_space", "action_space"):
            space, expected = space_from_json(description[kind]), getattr(policies[policy_id], kind)
            if not same_space(space, expected):
                raise _differs(f"{kind} of policy {policy_id!r}", space, expected, path)
    before = trainer.get_state()
    try:
        trainer.set_state(stored["state"])
    except BaseException:
        # A part of it may have been taken over already; weights of another model, say, are noticed only then.
        trainer.set_state(before)
        raise


def check_algorithm(stored: Mapping[str, Any], name: str, path: str | Path) -> None:
    """Raises CheckpointError unless the checkpoint was made by the algorithm of that name."""
    _check_same("algorithm", stored["algorithm"], name, path)


def refuse_untrusted(config: TrainerConfig, given: Mapping[str, Any], path: str | Path) -> None:
    """Refuses a stored config that would import code by name, in keys that the caller has not given himself.

    Raises:
        CheckpointError: it names an environment class or a custom model.
    """
    env, model = config.env, config.model.custom_model
    if "env" not in given and isinstance(env, str) and ":" in env and env not in registered_envs():
        raise untrusted(path, "an environment", env, "env=YourEnv")
    if "model" not in given and model is not None:
        raise untrusted(path, "a model", str(model), "model={'custom_model': YourModel, ...}")


def untrusted(path: str | Path, what: str, name: str, argument: str) -> CheckpointError:
    """The error for code that a checkpoint names and nobody vouched for."""
    return CheckpointError(
        f"The checkpoint uses {what} of the user's own, which is not imported on a file's word.",
        where=str(path),
        got=name,
        expected="the class itself, or trust_code=True",
        fix=f"pass {argument}, or trust_code=True (--trust-code) if you trust where the checkpoint comes from",
    )


def _check_same(what: str, got: Any, expected: Any, path: str | Path) -> None:
    if got != expected:
        raise _differs(what, got, expected, path)


def _differs(what: str, got: Any, expected: Any, path: str | Path) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint was saved with another {what} than this trainer's.",
        where=str(path),
        got=got,
        expected=expected,
        fix="restore it into a trainer with the same algorithm, policies and spaces, or use Trainer.from_checkpoint",
    )


def _described(policy: Policy) -> dict[str, Any]:
    return {
        "class": f"{type(policy).__module__}:{type(policy).__qualname__}",
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }


def _without_arrays(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Plain JSON values, with every array moved to `arrays` under its path; keys that are no strings are refused."""
    if isinstance(value, Mapping):
        return {key: _without_arrays(part, f"{path}/{key}", arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(part, f"{path}/{i}", arrays) for i, part in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if hasattr(value, "__array__"):
        # Keys may hold slashes, so two paths may read the same.
        name = path if path not in arrays else f"{path}#{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {_ARRAY: name}
    return value


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _with_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_arrays(part, arrays) for part in value]
    return value
