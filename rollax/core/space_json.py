"""Spaces as strict JSON: what is read from a file is checked before memory is allocated for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from rollax.core.spaces import DTYPES, SUPPORTED, check_space
from rollax.errors import SpaceError

ANOTHER_COPY = "use another copy of the file, or the version of rollax that stored it"
_SPACE_ATTRIBUTES = {
    spaces.Box: ("shape", "dtype", "low", "high"),
    spaces.Discrete: ("n", "start", "dtype"),
    spaces.MultiDiscrete: ("shape", "dtype", "nvec", "start"),
    spaces.MultiBinary: ("shape",),
}
_MAX_ELEMENTS = 1 << 24


def space_to_json(space: Space) -> dict[str, Any]:
    """Returns the space as plain JSON values; raises SpaceError for an unsupported space."""
    check_space(space, "the space to store")
    if isinstance(space, spaces.Dict):
        # A list of pairs keeps its order; a dict would be sorted, which reorders the columns of an action.
        return {"type": "Dict", "spaces": [[key_to_json(k), space_to_json(part)] for k, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    kind, names = next(entry for entry in _SPACE_ATTRIBUTES.items() if isinstance(space, entry[0]))
    return {"type": kind.__name__, **{name: _attribute_to_json(getattr(space, name)) for name in names}}


def key_to_json(key: Any) -> Any:
    """A key of a Dict space as a JSON value."""
    if isinstance(key, tuple):
        return [key_to_json(part) for part in key]
    return key.item() if isinstance(key, np.generic) else key


def key_from_json(key: Any) -> Any:
    """Returns the key for a result of `key_to_json`: lists become tuples; raises ValueError for a JSON object."""
    if isinstance(key, dict):
        raise ValueError("an object in place of a key")
    return tuple(map(key_from_json, key)) if isinstance(key, list) else key


def space_from_json(data: Any, where: str = "stored space") -> Space:
    """Returns the space for a result of `space_to_json`; SpaceError for malformed, unsupported or too large data."""
    try:
        refuse_large(elements_of(data), _MAX_ELEMENTS, where)
        space = _described(data)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise SpaceError(
            "The stored space is malformed.", where, f"{data!r} ({type(error).__name__}: {error})"
        ).expected(SUPPORTED, ANOTHER_COPY) from error
    check_space(space, where)
    return space


def _attribute_to_json(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, tuple):
        return [int(part) for part in value]
    # Infinities are strings, as strict JSON requires; if all numbers are equal, one is stored (an image has 28k).
    flat = np.ravel(value)
    if (flat == flat[0]).all():
        flat = flat[:1]
    numbers = [str(number) if np.isinf(number) else number for number in flat.tolist()]
    return numbers[0] if len(numbers) == 1 else numbers


def _described(data: Any) -> Space:
    kind = data["type"]
    if kind == "Dict":
        parts = [(key_from_json(key), _described(part)) for key, part in data["spaces"]]
        if len(dict(parts)) < len(parts):
            raise ValueError("a repeated key")
        return spaces.Dict(parts)
    if kind == "Tuple":
        return spaces.Tuple([_described(part) for part in data["spaces"]])
    if kind == "MultiBinary":
        return spaces.MultiBinary(_whole(data["shape"]))
    dtype = np.dtype(data.get("dtype", "float32" if kind == "Box" else "int64"))
    if dtype.name not in DTYPES or (kind != "Box" and dtype.kind not in "iu"):
        raise ValueError(f"numbers of type {dtype}")
    if kind == "Discrete":
        return spaces.Discrete(_whole(data["n"]), start=_whole(data.get("start", 0)), dtype=dtype.type)
    shape = tuple(_whole(data["shape"] if kind == "Box" else data.get("shape", list(np.shape(data["nvec"])))))
    if kind == "Box":
        low, high = (_array(data[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "MultiDiscrete":
        nvec, start = (_array(_whole(data.get(name, 0)), shape, np.int64) for name in ("nvec", "start"))
        return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)
    raise ValueError("unknown kind of space")


def _array(data: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    listed = data if isinstance(data, list) else [data]
    numbers = [float(number) if isinstance(number, str) else number for number in listed]
    with np.errstate(over="raise"):  # a number that the dtype cannot hold would become an infinity
        array = np.array(numbers, dtype)
    return np.broadcast_to(array.reshape(shape if isinstance(data, list) else ()), shape).copy()


def refuse_large(elements: int, most: int, where: str) -> None:
    if elements > most:
        raise SpaceError("Stored spaces are too large.", where, f"{elements} elements").expected(
            f"at most {most}", "use another copy of the file"
        )


def elements_of(data: Any) -> int:
    """Returns the number of elements of a flat sample, with discrete values one-hot, as a Python int (no overflow)."""
    kind = data["type"]
    if kind in ("Dict", "Tuple"):
        parts = [elements_of(part[1] if kind == "Dict" else part) for part in data["spaces"]]
        return sum(max(size, 0) for size in parts)  # a negative size, refused later, must not offset another
    if kind == "Discrete":
        return _whole(data["n"])
    size = math.prod(_whole(data["shape"])) if kind != "MultiDiscrete" or "shape" in data else len(data["nvec"])
    if kind != "MultiDiscrete":
        return size
    counts = _whole(data["nvec"])
    return sum(counts) if isinstance(counts, list) else max(counts, 1) * size


def _whole(value: Any) -> Any:
    """Returns the value if it is an integer or a list of integers; raises TypeError otherwise."""
    for number in value if isinstance(value, list) else [value]:
        if type(number) is not int:
            raise TypeError(f"{number!r} in place of an integer")
    return value
