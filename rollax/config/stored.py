"""Configs as strict JSON, without code: classes and functions are stored by the path they import from.

Where a field takes such a path itself (`env`, `model.custom_model`) it is stored as that string. Everywhere else, what
JSON cannot say is a dict whose first key begins with a dollar sign: {"$code": "module:Class"}, {"$space": ...},
{"$tuple": [...]}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, get_args

import numpy as np
from gymnasium.spaces import Space
from pydantic import BaseModel

from rollax.errors import ConfigError, SpaceError
from rollax.importing import import_object
from rollax.spaces import space_from_json, space_to_json

NOT_STORED = "not_stored"

_TAKE_A_PATH = ("env", "model.custom_model")


@dataclass(frozen=True)
class StoredCode:
    """A class or function of a stored config that was not imported: nobody vouched for it, or it has no import path.

    Calling it raises ConfigError, so a config can be used without the parts that need the code.
    """

    key: str
    path: str | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ConfigError."""
        raise ConfigError(
            "The config was loaded without its code.",
            where=f"config key '{self.key}'",
            got=self.path or "a lambda, local class or object, which has no import path and was not stored",
            fix=f"give {self.key} again" + (", or pass trust_code=True if you trust the file" if self.path else ""),
        )


def encode_config(config: BaseModel) -> dict[str, Any]:
    """All fields of a config, nested ones too; "not_stored" lists the keys that are null though they had a value."""
    lost: list[str] = []
    return {**_encode_fields(config, "", lost), NOT_STORED: lost}


def decode_config(data: Mapping[str, Any], *, trust_code: bool) -> dict[str, Any]:
    """The dict of values that `encode_config` described."""
    lost = frozenset(data.get(NOT_STORED, ()))
    return {key: _decode(value, key, lost, trust_code) for key, value in data.items() if key != NOT_STORED}


def import_path(value: Any) -> str | None:
    """ "module:qualname" of a class or function that can be imported by it; None for any other."""
    if not isinstance(value, type | FunctionType | BuiltinFunctionType) or value.__module__ == "__main__":
        return None
    path = f"{value.__module__}:{value.__qualname__}"
    try:
        return path if import_object(path, "") is value else None
    except ConfigError:
        return None


def _encode(value: Any, key: str, lost: list[str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseModel):
        return _encode_fields(value, key, lost)
    # A Dict space is a Mapping too.
    if isinstance(value, Mapping) and not isinstance(value, Space):
        encoded = {name: _encode(part, _join(key, name), lost) for name, part in value.items()}
        if all(isinstance(name, str) and not name.startswith("$") for name in value):
            return encoded
        return {"$dict": [[_encode(name, f"{key} (a key)", lost), part] for name, part in encoded.items()]}
    if isinstance(value, list | tuple):
        parts = [_encode(part, f"{key}[{i}]", lost) for i, part in enumerate(value)]
        return parts if isinstance(value, list) else {"$tuple": parts}
    if isinstance(value, np.generic):
        return _encode(value.item(), key, lost)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"$array": _encode(value.tolist(), key, lost), "dtype": str(value.dtype)}
    return _encode_code_or_space(value, key, lost)


def _encode_fields(model: BaseModel, key: str, lost: list[str]) -> dict[str, Any]:
    encoded = {}
    for name, field in type(model).model_fields.items():
        alias = field.serialization_alias or name
        value = getattr(model, name)
        # A field that says it holds tuples makes them out of JSON's lists; one that may hold anything does not.
        listed = value if _holds_anything(field.annotation) else _tuples_as_lists(value)
        encoded[alias] = _encode(listed, _join(key, alias), lost)
    return encoded


def _holds_anything(annotation: Any) -> bool:
    return annotation is Any or any(_holds_anything(part) for part in get_args(annotation))


def _tuples_as_lists(value: Any) -> Any:
    return [_tuples_as_lists(part) for part in value] if isinstance(value, tuple) else value


def _encode_code_or_space(value: Any, key: str, lost: list[str]) -> Any:
    if isinstance(value, Space):
        try:
            return {"$space": space_to_json(value)}
        except SpaceError:
            path = None
    else:
        path = value.path if isinstance(value, StoredCode) else import_path(value)
    if path is None:
        lost.append(key)
        return None
    return path if key in _TAKE_A_PATH else {"$code": path}


def _decode(value: Any, key: str, lost: frozenset[str], trust_code: bool) -> Any:
    if isinstance(value, list):
        return [_decode(part, f"{key}[{i}]", lost, trust_code) for i, part in enumerate(value)]
    if value is None and key in lost:
        return StoredCode(key, None)
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {name: _decode(part, _join(key, name), lost, trust_code) for name, part in value.items()}
    inner = value[tag]
    if tag == "$code":
        # What this package itself holds needs nobody's word.
        known = trust_code or inner.startswith("rollax.")
        return import_object(inner, f"config key '{key}'") if known else StoredCode(key, inner)
    if tag == "$space":
        return space_from_json(inner)
    if tag == "$float":
        return float(inner)
    if tag == "$tuple":
        return tuple(_decode(inner, key, lost, trust_code))
    if tag == "$array":
        return np.array(_decode(inner, key, lost, trust_code), dtype=value["dtype"])
    if tag == "$dict":
        pairs = ((_decode(name, key, lost, trust_code), part) for name, part in inner)
        return {name: _decode(part, _join(key, name), lost, trust_code) for name, part in pairs}
    raise ConfigError(
        "A stored config with a mark that this version does not know.",
        where=f"config key '{key}'",
        got=tag,
        fix="load it with the version of rollax that stored it, or a newer one",
    )


def _join(key: str, part: Any) -> str:
    return f"{key}.{part}" if key else str(part)
