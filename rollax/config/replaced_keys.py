"""Config keys that were renamed or removed since a checkpoint was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.config.json_form import GIVEN

REPLACED: dict[str, str | None] = {}
"""Config key of an earlier version, such as `model.old_key` -> the key that replaces it; None: the key was removed.

A key is renamed or removed in all algorithms at once, and stays here while checkpoints of format 3 are read.
"""


def with_current_keys(data: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """The stored config with the keys of earlier versions replaced or left out, as `REPLACED` lists them.

    Args:
        data: what `encode_config` returned in this or an earlier version.
        part: the beginning of its keys in `REPLACED`: `model.` for keys of the model.
    """

    def current(key: Any) -> Any:
        new = REPLACED.get(f"{part}{key}", key)
        return new.removeprefix(part) if isinstance(new, str) else new

    values = {new: value for key, value in data.items() if (new := current(key)) is not None}
    if isinstance(given := values.get(GIVEN), list):
        values[GIVEN] = [new for key in given if (new := current(key)) is not None]
    if part:
        return values
    for name, prefix in (("model", "model."), ("multiagent", "multiagent."), ("evaluation_config", "")):
        if isinstance(inner := values.get(name), Mapping):
            values[name] = with_current_keys(inner, prefix)
    match values.get("multiagent"):
        case {"policies": Mapping() as policies}:
            values["multiagent"]["policies"] = {name: _with_current_spec(spec) for name, spec in policies.items()}
    return values


def _with_current_spec(spec: Any) -> Any:
    match spec:
        case {"$tuple": parts}:
            return {"$tuple": _with_current_spec(parts)}
        case [cls, obs, action, dict(config)]:
            return [cls, obs, action, with_current_keys(config)]
    return spec
