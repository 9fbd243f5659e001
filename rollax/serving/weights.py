"""Policies as bytes, for inference at the clients: weights and filter as safetensors, the description as JSON.

Nothing is pickled, and only code of rollax is imported.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from rollax.config import TrainerConfig
from rollax.config.json_form import GIVEN, POLICY, space_from_json, space_to_json
from rollax.core import storage
from rollax.core.importing import StoredCode, named_by_file, path_of
from rollax.errors import CheckpointError, RequestError
from rollax.policy.policy import Policy
from rollax.policy.size_checks import models_as_large_as
from rollax.rollout.filters import FILTERS, make_filter
from rollax.rollout.policy_runner import PolicyRunner

FORMAT = "rollax-policy-1"
_KEY = "rollax"
_WEIGHTS, _FILTER = "weights/", "filter/"
_WHERE = "the served policy"
# Config keys that acting does not need; some have private values, such as addresses and paths.
_LEFT_OUT = (
    *("env", "env_config", "env_wrappers", "callbacks", "sampler", "evaluation_config", "ray_address", "multiagent"),
    *("output", "input", "input_config", "input_folder", "off_policy_estimation_input"),
)
_MAX_DESCRIPTION, _MAX_HEADER = 1 << 20, 8 << 20  # characters, bytes


def policy_to_bytes(runner: PolicyRunner, version: int) -> bytes:
    """The policy as safetensors: arrays `weights/<name>` and `filter/<name>`; the metadata has the description.

    The metadata's only key is "rollax". Its value is a JSON object: format, version of the weights, policy id, class,
    config, spaces, observation filter, timestep.

    Raises:
        RequestError: the policy's class is not part of rollax, or its config has a `custom_model`.
    """
    policy = runner.policy
    if not isinstance(policy.config, TrainerConfig) or not _is_own(policy):
        got = f"class {path_of(policy.made_by)}, model {getattr(policy.config, 'model', None)!r}"
        raise RequestError(
            "Clients do not have the code of this policy.", f"policy {policy.name!r}", got, status=409
        ).expected("a policy and a model of rollax", "use remote inference, or get the policy as ONNX")
    description = {
        "format": FORMAT,
        "version": version,
        "policy_id": policy.name,
        "class": path_of(policy.made_by),
        "config": _without(policy.config.to_json()),
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
        "observation_filter": next(name for name, kind in FILTERS.items() if type(runner.filter) is kind),
        "timestep": policy.timestep,
    }
    arrays = {
        **{_WEIGHTS + name: np.asarray(value, order="C") for name, value in policy.get_weights().items()},
        **{_FILTER + name: np.asarray(value, order="C") for name, value in runner.filter.state().items()},
    }
    return safetensors.numpy.save(arrays, {_KEY: json.dumps(description, allow_nan=False)})


def policy_from_bytes(data: bytes, *, seed: int | None = None) -> PolicyRunner:
    """The policy in the bytes of `policy_to_bytes`; it acts like the server's policy.

    Args:
        data: the response of GET /v1/weights.
        seed: seed of exploration; None for a random one.
    Raises:
        CheckpointError: the bytes are damaged or of another format, or refer to code outside of rollax.
        RollaxError: a config value, a space or a weight in the bytes is wrong.
    """
    description = read_description(data)
    name = description["class"]
    policy_class = named_by_file(str(name), "class", base=POLICY, trusted=False)
    if isinstance(policy_class, StoredCode) or policy_class.config_class is None:
        raise _refused("The policy's class is not one of rollax.", name, "a class of rollax")
    try:
        config = policy_class.config_class.from_json({**description["config"], "seed": seed})
        if isinstance(config.model.custom_model, StoredCode):
            raise _refused(
                "The policy's model is not one of rollax.", config.model.custom_model.shown, "no custom model"
            )
        observation_space = space_from_json(description["observation_space"], _WHERE)
        action_space = space_from_json(description["action_space"], _WHERE)
        with models_as_large_as([_under(_WEIGHTS, storage.bytes_to_arrays(data, _WHERE))]):
            policy = policy_class.make_policy(observation_space, action_space, config)
        observation_filter = make_filter(description["observation_filter"], observation_space)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise _refused(
            "The description of the policy is damaged.", f"{type(error).__name__}: {error}", FORMAT
        ) from error
    policy.name = description["policy_id"]
    runner = PolicyRunner.of(policy, config, observation_filter)
    update_policy(runner, data)
    return runner


def update_policy(runner: PolicyRunner, data: bytes) -> int:
    """Sets newer weights in the result of `policy_from_bytes`, without another compilation; returns their version.

    Raises CheckpointError or PolicyError for damaged bytes, or bytes of another policy; the old weights then stay.
    """
    description = read_description(data)
    arrays = storage.bytes_to_arrays(data, _WHERE)
    policy = runner.policy
    if description["class"] != path_of(policy.made_by) or description["policy_id"] != policy.name:
        got = f"{description['policy_id']!r} of {description['class']}"
        raise _refused("The weights are of a different policy.", got, f"{policy.name!r} of {path_of(policy.made_by)}")
    before = runner.filter.state()
    runner.filter.set_state(_under(_FILTER, arrays))
    try:
        policy.set_weights(_under(_WEIGHTS, arrays))
    except BaseException:
        runner.filter.set_state(before)
        raise
    policy.timestep = description["timestep"]
    return description["version"]


def read_description(data: bytes) -> dict[str, Any]:
    """The description in the metadata of a policy's bytes; CheckpointError if they are damaged or of another format."""
    # safetensors: 8 bytes with the length of a JSON header, the header, the arrays.
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if not 0 < length <= min(len(data) - 8, _MAX_HEADER):
        raise _refused("The bytes are not in the safetensors format.", f"{len(data)} bytes", FORMAT)
    header = storage.from_json_bytes(data[8 : 8 + length], _WHERE)
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str) or len(text) > _MAX_DESCRIPTION:
        raise _refused("The bytes do not contain a description of the policy.", str(metadata), f"the metadata {_KEY!r}")
    description = storage.from_json_bytes(text.encode(), _WHERE)
    expected = {"class": str, "config": dict, "policy_id": str, "observation_filter": str}
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        got = description.get("format") if isinstance(description, dict) else description
        raise _refused("The policy has a different format.", got, FORMAT)
    if not all(isinstance(description.get(key), kind) for key, kind in expected.items()) or not all(
        type(description.get(key)) is int and 0 <= description[key] < 2**63 for key in ("version", "timestep")
    ):
        raise _refused("The description of the policy is damaged.", sorted(description), FORMAT)
    return description


def _is_own(policy: Policy) -> bool:
    model = getattr(policy.config, "model", None)
    own = named_by_file(path_of(policy.made_by), "class", base=POLICY, trusted=False) is policy.made_by
    return own and getattr(model, "custom_model", None) is None


def _without(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    if GIVEN in kept:
        kept[GIVEN] = [name for name in kept[GIVEN] if name not in _LEFT_OUT]
    return kept


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _refused(what: str, got: Any, expected: str) -> CheckpointError:
    fix = "use remote inference, or serve a policy and model of rollax, with this version of rollax"
    return CheckpointError(what, where=_WHERE, got=got, expected=expected, fix=fix)
