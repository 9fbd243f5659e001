"""Configs as strict JSON, without code: classes and functions are stored by the path they import from.

A value that JSON lacks is a dict whose first key begins with a dollar sign: {"$code": "module:Class"}, {"$space": ...},
{"$tuple": [...]}. {"$code": null} is code without an import path, or any other object. The fields that hold a class or
function (`env`, `env_wrappers`, `callbacks`, `sampler`, `model.custom_model`, `multiagent.policy_mapping_fn`, the
policies of `multiagent.policies`, and further `NAMES_IN_SECTIONS` of `field_types.py`) also accept its path as a plain
string.

If the file of the config is trusted, a path in those fields is imported at once, or becomes an `ImportPath` in
`env_wrappers` and the fields `IMPORTED_WHERE_USED`. Otherwise it becomes a `StoredCode`, except for rollax's own
policies, which are imported without trust. Strings in all other fields stay plain strings, and are never imported.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.spaces import Space
from pydantic import BaseModel

from rollax.config.field_types import IMPORTED_WHERE_USED, NAMES_IN_SECTIONS
from rollax.core.frozen import fields_by_key
from rollax.core.importing import JAX_ENV, REGISTERED, ImportPath, StoredCode, import_object, named_by_file, path_of
from rollax.core.space_json import ANOTHER_COPY, elements_of, refuse_large, space_from_json, space_to_json
from rollax.errors import ConfigError, SpaceError

GIVEN = "given"
POLICY = ("rollax.policy.policy:Policy", "rollax.policy.base_algorithm:BaseAlgorithm")
Trust = Literal["nothing", "code fields", "everything"]
Place = tuple[Any, ...]
"""Keys and positions that lead to a value."""
_ARRAY_KINDS = "biufU"
_MAX_DEPTH = 100  # as in a file of JSON
_MOST_PADDING, _FEW = 256, 1024  # most bytes of an array of strings, per character; bytes that are always allowed
_MAX_CONFIG_ELEMENTS = 1 << 25


def encode_config(config: BaseModel) -> dict[str, Any]:
    """All fields of a config, nested ones included; "given" lists the fields that were set."""
    return {**_encode_fields(config), GIVEN: sorted(config.model_fields_set)}


def encode_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Some keys of a config with their values, as `decode_config` reads them."""
    return {key: _code_as_path(key, _encode(value)) for key, value in values.items()}


def given_fields(data: Mapping[str, Any], config_class: type[BaseModel]) -> list[str]:
    """The fields that were set in a config encoded by `encode_config`."""
    names = data.get(GIVEN, list(config_class.model_fields))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "The list of given keys in a stored config is malformed.", f"config key '{GIVEN}'", names
        ).expected("a list of keys", "use another copy of the file")
    return names


def decode_config(data: Mapping[str, Any], *, trust: Trust = "nothing") -> dict[str, Any]:
    """The dict of values that `encode_config` encoded.

    Args:
        trust: which named code is imported besides rollax's own policies: none, the code in fields that hold code, or
            all code. The rest becomes `StoredCode`.
    Raises:
        ConfigError, SpaceError: a tag is unknown or malformed, the levels are too many or the spaces too large, or
            trusted code does not import.
    """
    refuse_large(_elements_in(data), _MAX_CONFIG_ELEMENTS, "stored config")
    return {key: _decode(value, (key,), trust) for key, value in data.items() if key != GIVEN}


def missing_code(value: Any) -> Iterator[StoredCode]:
    """All code in a decoded config that was not imported."""
    if isinstance(value, StoredCode):
        yield value
    elif isinstance(value, Mapping | list | tuple) and not isinstance(value, Space):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from missing_code(part)


def requires_trust(encoded: Mapping[str, Any]) -> bool:
    """Whether a file with these encoded values is read only with trust: it names code, or a Ray cluster."""
    decoded = decode_config(encoded)
    return any(missing_code(decoded)) or cluster_in(decoded) is not None


def cluster_in(values: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The key and the value of the address of a Ray cluster in a decoded config; None if it has none.

    Ray's processes exchange pickles: a process at this address can run code here.
    """
    evaluation = values.get("evaluation_config")
    for part, prefix in ((values, ""), (evaluation if isinstance(evaluation, Mapping) else {}, "evaluation_config.")):
        if part.get("ray_address") is not None:
            return f"{prefix}ray_address", part["ray_address"]
    return None


def import_path(value: Any) -> str | None:
    """ "module:qualname" of a class or function that can be imported by it; None for any other."""
    if not isinstance(value, type | FunctionType | BuiltinFunctionType) or value.__module__ == "__main__":
        return None
    path = path_of(value)
    try:
        return path if import_object(ImportPath(path), "") is value else None
    except ConfigError:
        return None


def check_spaces_together(descriptions: Iterable[Any], where: str) -> None:
    """Raises SpaceError if the spaces with these descriptions by `space_to_json` are together too large."""
    refuse_large(_elements_in([{"$space": data} for data in descriptions]), _MAX_CONFIG_ELEMENTS, where)


def _encode_fields(model: BaseModel) -> dict[str, Any]:
    encoded = {}
    for key, name in fields_by_key(type(model)).items():
        value, field = getattr(model, name), type(model).model_fields[name]
        # Fields with tuples as their type convert lists back to tuples; fields with the type Any do not.
        part = _encode(value if _holds_anything(field.annotation) else _tuples_as_lists(value))
        encoded[key] = _code_as_path(name, part)
    return encoded


def _code_as_path(name: str, part: Any) -> Any:
    """The encoded value, or the path alone if the field is in `IMPORTED_WHERE_USED` and the value is code."""
    return part.get("$code") or part if name in IMPORTED_WHERE_USED and isinstance(part, dict) else part


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, ImportPath):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseModel):
        return _encode_fields(value)
    if isinstance(value, Space):
        try:
            return {"$space": space_to_json(value)}
        except SpaceError:
            return {"$code": None}
    if isinstance(value, Mapping):
        if all(isinstance(name, str) and not name.startswith("$") for name in value):
            return {name: _encode(part) for name, part in value.items()}
        return {"$dict": [[_encode(name), _encode(part)] for name, part in value.items()]}
    if isinstance(value, list):
        return [_encode(part) for part in value]
    if isinstance(value, np.generic | np.ndarray) and not value.ndim:
        return _encode(value.item())
    return _encode_object(value)


def _encode_object(value: Any) -> dict[str, Any]:
    """A value that JSON lacks; code and other objects by import path, or as None."""
    if isinstance(value, tuple):
        return {"$tuple": [_encode(part) for part in value]}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, set | frozenset):
        parts = [_encode(part) for part in value]
        return {"$frozenset" if isinstance(value, frozenset) else "$set": sorted(parts, key=str)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS and not _padded(value, value.dtype):
        return {"$array": _encode(value.tolist()), "dtype": str(value.dtype)}
    return {"$code": value.path if isinstance(value, StoredCode) else import_path(value)}


def _padded(strings: Any, dtype: np.dtype) -> bool:
    """Whether an array of strings (of any shape) would take far more memory than their characters need.

    A short file could then fill the memory, because each string is padded to the width of the dtype.
    """
    if dtype.kind != "U":
        return False
    lengths = [len(text) if isinstance(text, str) else 1 for text in np.asarray(strings, object).flat]
    return dtype.itemsize * len(lengths) > max(_MOST_PADDING * sum(length + 1 for length in lengths), _FEW)


def _holds_anything(annotation: Any) -> bool:
    return annotation is Any or any(_holds_anything(part) for part in get_args(annotation))


def _tuples_as_lists(value: Any) -> Any:
    return [_tuples_as_lists(part) for part in value] if isinstance(value, tuple) else value


def _decode(value: Any, place: Place, trust: Trust) -> Any:
    if len(place) > _MAX_DEPTH:
        raise ConfigError("A stored config is nested too deeply.", f"config key '{place[0]}'").expected(
            f"at most {_MAX_DEPTH} levels", "use another copy of the file, or fewer levels"
        )
    if isinstance(value, list):
        return [_decode(part, (*place, i), trust) for i, part in enumerate(value)]
    if isinstance(value, str) and _is_code(value, place):
        return _code(value, place, trust)
    if not isinstance(value, dict):
        return value
    if not str(next(iter(value), "")).startswith("$"):
        return {name: _decode(part, (*place, name), trust) for name, part in value.items()}
    try:
        return _tagged(value, place, trust)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            "A tag of the stored config is malformed, or unknown to this version of rollax.",
            f"config key '{_key(place)}'",
            f"{value!r} ({type(error).__name__}: {error})",
        ).expected("a value as rollax stores it under that tag", ANOTHER_COPY) from error


def _tagged(value: dict[str, Any], place: Place, trust: Trust) -> Any:
    match value, len(value):
        case {"$code": str() | None as path}, 1:
            return _code(path, place, trust)
        case {"$space": description}, 1:
            return space_from_json(description, f"config key '{_key(place)}'")
        case {"$float": str(text)}, 1:
            return float(text)
        case {"$tuple": list(parts)}, 1:
            return tuple(_decode(parts, place, trust))
        case {"$path": str(text)}, 1:
            return _code(text, place, trust) if _is_code(text, place) else Path(text)
        case {"$set": list(parts)}, 1:
            return set(_decode(parts, place, trust))
        case {"$frozenset": list(parts)}, 1:
            return frozenset(_decode(parts, place, trust))
        case {"$bytes": str(text)}, 1:
            return base64.b64decode(text, validate=True)
        case {"$array": list(rows), "dtype": str(dtype)}, 2 if np.dtype(dtype).kind in _ARRAY_KINDS:
            found = _decode(rows, place, trust)
            if _padded(found, np.dtype(dtype)):
                raise ValueError("strings that are mostly padding")
            return np.array(found, dtype)
        case {"$dict": list(pairs)}, 1:
            named = [(_decode(name, place, trust), part) for name, part in pairs]
            return {name: _decode(part, (*place, str(name)), trust) for name, part in named}
    raise ValueError("an unknown tag, a value of the wrong type, or further keys beside the tag")


def _code(path: str | None, place: Place, trust: Trust) -> Any:
    trusted = trust == "everything" or (trust == "code fields" and _holds_code(place))
    if path is None or (trusted and (place[-1] in IMPORTED_WHERE_USED or "env_wrappers" in place)):
        return StoredCode(_key(place), None) if path is None else ImportPath(path)
    return named_by_file(path, _key(place), base=POLICY if _holds_policy(place) else (), trusted=trusted)


def _is_code(text: str, place: Place) -> bool:
    """Whether a string names code: in a field that holds code, unless it is the name of an environment."""
    named = place[-1] == "env" and (text in REGISTERED or text.startswith(JAX_ENV))
    return ":" in text and _holds_code(place) and not named


def _holds_code(place: Place) -> bool:
    """Whether the field at `place` of a config holds a class or function."""
    match place:
        case ("env",) | ("sampler",) | ("multiagent", "policy_mapping_fn"):
            return True
        case (str(section), name) if name in NAMES_IN_SECTIONS.get(section, ()):
            return True
        case ("callbacks",) | ("callbacks", int()):
            return True
        case ("env_wrappers", int()) | ("env_wrappers", int(), 0):
            return True
        case ("evaluation_config", *rest) | ("multiagent", "policies", _, 3, *rest):
            return _holds_code(tuple(rest))
    return _holds_policy(place)


def _holds_policy(place: Place) -> bool:
    match place:
        case ("multiagent", "policies", _) | ("multiagent", "policies", _, 0):
            return True
        case ("evaluation_config", *rest):
            return _holds_policy(tuple(rest))
    return False


def _key(place: Place) -> str:
    first, *rest = place
    return str(first) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _elements_in(value: Any, levels: int = _MAX_DEPTH) -> int:
    """The elements of all spaces in a stored config; malformed spaces, which are refused when read, count 0."""
    if not isinstance(value, list | dict) or not levels:
        return 0
    if isinstance(value, dict) and "$space" in value:
        try:
            return max(elements_of(value["$space"]), 0)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            return 0
    return sum(_elements_in(part, levels - 1) for part in (value.values() if isinstance(value, dict) else value))
