"""Lists of wrappers of an environment, as the config key `env_wrappers` and `check_env` take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.core.importing import named_by_caller


def wrappers_by_caller(value: Any) -> Any:
    """Returns the caller's list of wrappers, with an `ImportPath` for each path; any other value unchanged."""
    if not isinstance(value, list | tuple):
        return value
    return [named_by_caller(one) if isinstance(one, str) else _pair_by_caller(one) for one in value]


def _pair_by_caller(wrapper: Any) -> Any:
    is_pair = isinstance(wrapper, list | tuple) and len(wrapper) == 2
    return (named_by_caller(wrapper[0]), wrapper[1]) if is_pair else wrapper


def checked_wrappers(value: Any) -> tuple[Any, ...]:
    """Returns wrappers: classes, functions or their paths, each alone or as a pair with a dict of keyword arguments.

    Raises:
        ValueError: `value` is not a list of wrappers.
    """
    if not isinstance(value, list | tuple) or not all(map(_is_wrapper, value)):
        raise ValueError(
            "a list of classes or functions or their paths, each alone or as a pair ['module:Class', {keywords}]"
        )
    return tuple(one if callable(one) or isinstance(one, str) else (one[0], dict(one[1])) for one in value)


def _is_wrapper(value: Any) -> bool:
    is_pair = isinstance(value, list | tuple)
    if is_pair and not (len(value) == 2 and isinstance(value[1], Mapping)):
        return False
    one = value[0] if is_pair else value
    return callable(one) or (isinstance(one, str) and ":" in one)
