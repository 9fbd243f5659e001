"""Checked access to the values of a stored state; a missing or wrong value raises CheckpointError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.core.numbers import is_finite
from rollax.errors import CheckpointError


def read_count(state: Mapping[str, Any], key: str, where: str, *, below: int = 2**63) -> int:
    """Returns a count: an integer of at least 0 and less than `below`."""
    value = read_value(state, key, where)
    if type(value) is not int or not 0 <= value < below:
        raise wrong_value(f"{where}: {key}", value, f"an integer of at least 0 and less than {below}")
    return value


def read_number(state: Mapping[str, Any], key: str, where: str) -> float:
    """Returns a finite number of at least 0."""
    value = read_value(state, key, where)
    if not is_finite(value) or value < 0:
        raise wrong_value(f"{where}: {key}", value, "a finite number of at least 0")
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
    """Returns the state of a random generator; it must be valid for a bit generator of the class that `like` has."""
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
