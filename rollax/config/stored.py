"""Configs as strict JSON, without code: classes and functions are stored by the path they import from.

A value that JSON lacks is a dict whose only key begins with a dollar sign: {"$code": "module:Class"}, {"$space": ...},
{"$tuple": [...]}. The fields that hold a class or function (`env`, `callbacks`, `sampler`, `model.custom_model`,
`multiagent.policy_mapping_fn` and the policies of `multiagent.policies`) also accept its path as a plain string.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.spaces import Space
from pydantic import BaseModel

from rollax.errors import ConfigError, SpaceError
from rollax.importing import REGISTERED, StoredCode, import_object, named_by_file, path_of
from rollax.spaces import space_from_json, space_to_json

NOT_STORED = "not_stored"
GIVEN = "given"
POLICY = "rollax.policy.policy:Policy"

Trust = Literal["nothing", "code fields", "everything"]
_MAX_DEPTH = 100  # as in a file of JSON
Place = tuple[Any, ...]
"""Keys and positions that lead to a value."""


def encode_config(config: BaseModel) -> dict[str, Any]:
    """All fields of a config, nested ones included.

    "not_stored" lists the keys that are null because their value cannot be stored, "given" the fields that were set.
    """
    lost: list[str] = []
    return {**_encode_fields(config, "", lost), NOT_STORED: lost, GIVEN: sorted(config.model_fields_set)}


def given_fields(data: Mapping[str, Any], config_class: type[BaseModel]) -> list[str]:
    """The fields that were set in a config encoded by `encode_config`.

    Raises:
        ConfigError: the list is malformed.
    """
    return _names(data, GIVEN, list(config_class.model_fields))


def decode_config(data: Mapping[str, Any], *, trust: Trust = "nothing") -> dict[str, Any]:
    """The dict of values that `encode_config` encoded.

    Args:
        data: plain JSON values.
        trust: which named code is imported besides rollax's own policies: none, that of the fields that hold code, or
            all. The rest becomes `StoredCode`.
    Raises:
        ConfigError: a tag is unknown or malformed, or trusted code does not import.
        SpaceError: a space is malformed.
    """
    decoder = _Decoder(frozenset(_names(data, NOT_STORED, [])), trust)
    return {key: decoder.decode(value, (key,)) for key, value in data.items() if key not in (NOT_STORED, GIVEN)}


def missing_code(value: Any) -> Iterator[StoredCode]:
    """All code in a decoded config that was not imported."""
    if isinstance(value, StoredCode):
        yield value
    elif isinstance(value, Mapping | list | tuple) and not isinstance(value, Space):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from missing_code(part)


def import_path(value: Any) -> str | None:
    """ "module:qualname" of a class or function that can be imported by it; None for any other."""
    if not isinstance(value, type | FunctionType | BuiltinFunctionType) or value.__module__ == "__main__":
        return None
    path = path_of(value)
    try:
        return path if import_object(path, "") is value else None
    except ConfigError:
        return None


def _names(data: Mapping[str, Any], key: str, default: list[str]) -> list[str]:
    names = data.get(key, default)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("A malformed list.", where=f"config key '{key}'", got=names, expected="a list of keys")
    return names


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
        # A field of tuples converts JSON's lists to tuples; a field of any type does not.
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
    return path if key in ("env", "model.custom_model") else {"$code": path}


class _Decoder:
    def __init__(self, lost: frozenset[str], trust: Trust) -> None:
        self._lost = lost
        self._trust = trust

    def decode(self, value: Any, place: Place) -> Any:
        if len(place) > _MAX_DEPTH:
            raise ConfigError(
                "A stored config is nested too deeply.",
                where=f"config key '{place[0]}'",
                expected=f"at most {_MAX_DEPTH} levels",
            )
        if isinstance(value, list):
            return [self.decode(part, (*place, i)) for i, part in enumerate(value)]
        if value is None and _key(place) in self._lost:
            return StoredCode(_key(place), None)
        if isinstance(value, str) and _is_code(value, place):
            return self._code(value, place)
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")
        if not (isinstance(tag, str) and tag.startswith("$")):
            return {name: self.decode(part, (*place, name)) for name, part in value.items()}
        try:
            return self._tagged(tag, value, place)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                "A stored config has a malformed tag.",
                where=f"config key '{_key(place)}'",
                got=f"{value!r} ({type(error).__name__}: {error})",
                expected=f"what rollax stores under {tag}",
                fix="use another copy of the file",
            ) from error

    def _tagged(self, tag: str, value: Mapping[str, Any], place: Place) -> Any:
        inner = value[tag]
        if len(value) != (2 if tag == "$array" else 1):
            raise ValueError("other keys beside the tag")
        if tag == "$code":
            return self._code(_of(str, inner), place)
        if tag == "$space":
            return space_from_json(inner, f"config key '{_key(place)}'")
        if tag == "$float":
            return float(_of(str, inner))
        if tag == "$tuple":
            return tuple(self.decode(_of(list, inner), place))
        if tag == "$array":
            dtype = np.dtype(_of(str, value["dtype"]))
            if dtype.kind not in "biuf":
                raise ValueError(f"an array of {dtype}")
            return np.array(self.decode(_of(list, inner), place), dtype=dtype)
        if tag == "$dict":
            pairs = [(self.decode(name, place), part) for name, part in _of(list, inner)]
            return {name: self.decode(part, (*place, str(name))) for name, part in pairs}
        raise ConfigError(
            "A stored config has a tag that this version does not know.",
            where=f"config key '{_key(place)}'",
            got=tag,
            fix="load it with the version of rollax that stored it, or a newer one",
        )

    def _code(self, path: str, place: Place) -> Any:
        trusted = self._trust == "everything" or (self._trust == "code fields" and _holds_code(place))
        if trusted and place[-1] in ("env", "custom_model"):
            return path  # imported where it is used
        return named_by_file(path, _key(place), base=POLICY if _holds_policy(place) else None, trusted=trusted)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} instead of a {kind.__name__}")
    return value


def _is_code(text: str, place: Place) -> bool:
    """Whether a string names code: in a field that holds code, unless it is a registered environment."""
    return ":" in text and _holds_code(place) and not (place[-1] == "env" and text in REGISTERED)


def _holds_code(place: Sequence[Any]) -> bool:
    """Whether the field at `place` of a config holds a class or function."""
    match tuple(place):
        case ("env",) | ("callbacks",) | ("sampler",) | ("model", "custom_model") | ("multiagent", "policy_mapping_fn"):
            return True
        case ("evaluation_config", *rest) | ("multiagent", "policies", _, 3, *rest):
            return _holds_code(rest)
    return _holds_policy(place)


def _holds_policy(place: Sequence[Any]) -> bool:
    match tuple(place):
        case ("multiagent", "policies", _) | ("multiagent", "policies", _, 0):
            return True
        case ("evaluation_config", *rest):
            return _holds_policy(rest)
    return False


def _key(place: Place) -> str:
    first, *rest = place
    return str(first) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _join(key: str, part: Any) -> str:
    return f"{key}.{part}" if key else str(part)
