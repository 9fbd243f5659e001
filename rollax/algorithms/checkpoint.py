"""Checkpoints: a trainer's state as JSON and safetensors, and back. Nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax import __version__, storage
from rollax.errors import CheckpointError
from rollax.policy.policy import Policy
from rollax.spaces import same_space, space_from_json, space_to_json

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

KIND, FORMAT = "rollax-checkpoint", 1
_ARRAY = "$array"


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
    _same("algorithm", stored["algorithm"], trainer.name, path)
    _same("observation_filter", stored["observation_filter"], trainer.config.observation_filter, path)
    policies = trainer.worker.policies
    _same("policy ids", sorted(stored["policies"]), sorted(policies), path)
    for policy_id, description in stored["policies"].items():
        for kind in ("observation_space", "action_space"):
            space, expected = space_from_json(description[kind]), getattr(policies[policy_id], kind)
            if not same_space(space, expected):
                _same(f"{kind} of policy {policy_id!r}", space, expected, path)
    trainer.set_state(stored["state"])


def _same(what: str, got: Any, expected: Any, path: Path) -> None:
    if got != expected:
        raise CheckpointError(
            f"The checkpoint's {what} is not this trainer's.",
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
    """Plain JSON values, with every array moved to `arrays` under its path."""
    if isinstance(value, Mapping):
        return {str(key): _without_arrays(part, f"{path}/{key}", arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(part, f"{path}/{i}", arrays) for i, part in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {_ARRAY: path}
    return value


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _with_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_arrays(part, arrays) for part in value]
    return value
