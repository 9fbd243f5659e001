"""`content_of`: a hashable value that is equal for values of equal content, such as configs and spaces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from pydantic import BaseModel

_RANDOM_STATE = frozenset({"_np_random", "_np_random_seed"})  # attributes of a space that sampling changes


def content_of(value: Any) -> Hashable:
    """The content of configs, spaces, arrays, and nested dicts, lists, tuples and sets; 1, 1.0 and True differ.

    Any other value, such as a class or a function, is equal to itself only.
    """
    kind = type(value)
    if isinstance(value, BaseModel):
        return kind, _of_mapping(vars(value))
    if isinstance(value, Space):
        return kind, _of_mapping({name: part for name, part in vars(value).items() if name not in _RANDOM_STATE})
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return kind, _of_mapping(value)
    if isinstance(value, list | tuple):
        return kind, tuple(map(content_of, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(content_of, value))
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype | None):
        return kind, repr(value)  # the repr tells 0.0 from -0.0
    return _Itself(value)


def _of_mapping(values: Mapping[Any, Any]) -> Hashable:
    return frozenset((content_of(key), content_of(value)) for key, value in values.items())


class _Itself:
    """Compares a value by identity, and keeps it, so that its address is not used again."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
