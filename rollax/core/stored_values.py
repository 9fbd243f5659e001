"""Values of a stored state: separation of arrays from JSON, and checked access, which raises CheckpointError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollax.core.numbers import is_finite
from rollax.errors import CheckpointError

_ARRAY, _FLOAT = "$array", "$float"
_FLOATS = frozenset(map(str, (math.nan, math.inf, -math.inf)))


def without_arrays(value: Any, path: str, arrays: dict[str, np.ndarray], names: dict[int, str]) -> Any:
    """Returns JSON values; each array is moved to `arrays` under its path, once. `names` maps array ids to paths."""
    if isinstance(value, Mapping):
        if value.keys() in ({_ARRAY}, {_FLOAT}):
            raise CheckpointError("The only key of a dict is a reserved one.", path, value).expected(
                f"a dict with other keys than {_ARRAY} and {_FLOAT}", "rename the key"
            )
        return {key: without_arrays(part, f"{path}/{key}", arrays, names) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_arrays(part, f"{path}/{i}", arrays, names) for i, part in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if hasattr(value, "__array__"):
        if id(value) not in names:
            # Keys may contain slashes, so two paths may be equal as text.
            names[id(value)] = path if path not in arrays else f"{path}#{len(arrays)}"
            arrays[names[id(value)]] = np.asarray(value)
        return {_ARRAY: names[id(value)]}
    return value


def with_arrays(value: Any, arrays: Mapping[str, np.ndarray], where: str) -> Any:
    """Returns the values that `without_arrays` converted to `value` and `arrays`; tuples have become lists."""
    if isinstance(value, list):
        return [with_arrays(part, arrays, where) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        if not (isinstance(name := value[_ARRAY], str) and name in arrays):
            raise wrong_value(where, value, "the name of an array in arrays.safetensors")
        return arrays[name]
    if value.keys() == {_FLOAT}:
        if not (isinstance(value[_FLOAT], str) and value[_FLOAT] in _FLOATS):
            raise wrong_value(where, value, f"one of {sorted(_FLOATS)}")
        return float(value[_FLOAT])
    return {key: with_arrays(part, arrays, where) for key, part in value.items()}


def read_count(state: Mapping[str, Any], key: str, where: str, *, below: int = 2**63) -> int:
    """Returns a count: an integer of at least 0 and less than `below`."""
    value = read_value(state, key, where)
    if type(value) is not int or not 0 <= value < below:
        raise wrong_value(f"{where}: {key}", value, f"an integer of at least 0 and less than {below}")
    return value


def read_number(
    state: Mapping[str, Any], key: str, where: str, *, least: float = 0, accepts: Callable[[Any], bool] = is_finite
) -> float:
    """Returns a number of at least `least` that `accepts` accepts, by default a finite one."""
    value = read_value(state, key, where)
    if not accepts(value) or value < least:
        bound = f" of at least {least}" if is_finite(least) else ""
        raise wrong_value(f"{where}: {key}", value, f"a finite number{bound}")
    return float(value)


def read_array(state: Mapping[str, Any], key: str, where: str, *, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    value = read_value(state, key, where)
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        raise wrong_value(f"{where}: {key}", as_text(value), f"{np.dtype(dtype)} array of shape {shape}")
    return value


def read_dict(state: Any, key: str, where: str) -> Mapping[str, Any]:
    value = read_value(state, key, where)
    if not isinstance(value, Mapping):
        raise wrong_value(f"{where}: {key}", as_text(value), "a dict")
    return value


def read_list(state: Any, key: str, where: str) -> list[Any]:
    value = read_value(state, key, where)
    if not isinstance(value, list):
        raise wrong_value(f"{where}: {key}", as_text(value), "a list")
    return value


def generator_state(state: Mapping[str, Any], key: str, where: str, like: np.random.Generator) -> Any:
    """Returns the state of a random generator, checked by a new bit generator of the class of `like.bit_generator`."""
    value = read_value(state, key, where)
    try:
        type(like.bit_generator)(0).state = value
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        kind = type(like.bit_generator).__name__
        raise wrong_value(f"{where}: {key}", f"{value!r} ({error})", f"the state of a {kind} generator") from error
    return value


def read_value(state: Any, key: str, where: str) -> Any:
    if not isinstance(state, Mapping) or key not in state:
        got = sorted(state) if isinstance(state, Mapping) else as_text(state)
        raise wrong_value(where, got, f"a dict with the key {key!r}")
    return state[key]


def as_text(value: Any) -> str:
    return f"{value.dtype} array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)


def wrong_value(where: str, got: Any, expected: str) -> CheckpointError:
    return CheckpointError.damaged(where, got, expected, "A stored value is missing or invalid.")
