"""Checks on what environments return: the full ones on each sub-environment's first episode, the cheap ones always.

The cheap checks (shape, dtype, finite) run in bulk over the columns of a poll; only when one fails is the culprit
looked for among the rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax import trees
from rollax.errors import EnvError, RollaxError
from rollax.spaces import stack

log = logging.getLogger("rollax.env")
_said: set[tuple[str, str]] = set()

Where = Callable[[int], str]
"""Names the place of a row in an error message."""


def say_once(topic: str, subject: str, message: str) -> None:
    """Logs a warning the first time that this topic comes up for this subject."""
    if (topic, subject) not in _said:
        _said.add((topic, subject))
        log.warning("%s", message)


def check_reset(result: Any, where: str) -> tuple[Any, dict]:
    """`(obs, info)` as `reset` must return it."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise EnvError(
            "reset() did not return (obs, info).",
            where=where,
            got=_outline(result),
            expected="a tuple of an observation and an info dict",
            fix="return obs, {} from reset; an env of the old interface is accepted whole, through its own adapter",
        )
    return result


def check_step(result: Any, where: str) -> tuple[Any, Any, Any, Any, Any]:
    """`(obs, reward, terminated, truncated, info)` as `step` must return it."""
    if not (isinstance(result, tuple) and len(result) == 5):
        raise EnvError(
            "step() did not return five values.",
            where=where,
            got=_outline(result),
            expected="(obs, reward, terminated, truncated, info)",
            fix="return terminated and truncated apart; a 4-tuple env must return reset() -> obs too to be adapted",
        )
    if not isinstance(result[4], dict):
        raise EnvError("An info that is no dict.", where=where, got=result[4], expected="a dict", fix="return {}")
    return result


def observation_columns(space: spaces.Space, values: Sequence[Any], where: Where) -> trees.Tree:
    """Single observations as columns, with shape, dtype and finiteness checked in bulk.

    Raises:
        EnvError: a wrong shape, wrong Dict keys, a dtype that cannot be cast safely, a NaN.
    """
    try:
        columns = stack(space, values)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        for row, value in enumerate(values):
            check_observation(space, value, where(row))
        raise EnvError(
            "Observations that do not stack.", where=where(0), got=error, expected=space, fix="return equal shapes"
        ) from error
    check_columns(space, columns, where, values)
    return columns


def check_columns(space: spaces.Space, columns: trees.Tree, where: Where, values: Sequence[Any] | None = None) -> None:
    """Shape and finiteness of observation columns, in bulk."""
    if isinstance(columns, np.ndarray):
        if columns.shape[1:] != (space.shape or ()):
            _refuse_shape(where(0), columns.shape[1:], space)
        # A sum is finite unless an element is not (or it overflows): one pass without a temporary array.
        if columns.dtype.kind == "f" and not math.isfinite(columns.sum()):
            _refuse_non_finite(space, columns, where)
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_columns(part, columns[key], lambda row, k=key: f"{where(row)}, key {k!r}")
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            check_columns(part, columns[i], lambda row, k=i: f"{where(row)}, element {k}")


def _refuse_non_finite(space: spaces.Space, columns: np.ndarray, where: Where) -> None:
    infinite_allowed = isinstance(space, spaces.Box) and not space.is_bounded("both")
    bad = np.isnan(columns) if infinite_allowed else ~np.isfinite(columns)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise EnvError(
            "A NaN or infinite observation.",
            where=where(row),
            got=columns[row],
            expected=f"finite numbers in {space}",
            fix="find the division or overflow in the env that made it",
        )


def check_observation(space: spaces.Space, value: Any, where: str) -> None:
    """One observation against its space, in full; out of bounds is said once, everything else is refused."""
    if isinstance(space, spaces.Dict):
        keys = set(value) if isinstance(value, dict) else None
        if keys != set(space.spaces):
            raise EnvError(
                "A Dict observation with the wrong keys.",
                where=where,
                got=sorted(map(str, keys)) if keys is not None else _outline(value),
                expected=sorted(map(str, space.spaces)),
                fix="return exactly the keys of the observation space",
            )
        for key, part in space.spaces.items():
            check_observation(part, value[key], f"{where}, key {key!r}")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise EnvError(
                "A Tuple observation of the wrong length.",
                where=where,
                got=_outline(value),
                expected=f"{len(space.spaces)} elements",
                fix="return one element per part of the observation space",
            )
        for i, part in enumerate(space.spaces):
            check_observation(part, value[i], f"{where}, element {i}")
        return
    array = np.asarray(value)
    if array.shape != (space.shape or ()):
        _refuse_shape(where, array.shape, space)
    _check_dtype(space, array, where)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise EnvError(
            "A NaN observation.", where=where, got=value, expected=f"numbers in {space}", fix="find what made it in the env"
        )
    if not space.contains(array.astype(space.dtype) if array.shape else array.astype(space.dtype)[()]):
        say_once("bounds", str(space), f"{where}: an observation outside of its space {space}: {value!r}. Said once.")


def _check_dtype(space: spaces.Space, array: np.ndarray, where: str) -> None:
    assert space.dtype is not None
    if array.dtype == space.dtype:
        return
    kinds = array.dtype.kind + space.dtype.kind
    # Numbers of a kind may narrow (float64 to float32) and whole numbers may widen into floats; the rest loses meaning.
    safe = kinds in ("ff", "ii", "uu", "iu", "ui", "if", "uf", "bi", "bu", "bf")
    if not safe:
        raise EnvError(
            "An observation of a dtype that cannot be cast safely.",
            where=where,
            got=f"{array.dtype}: {array!r}",
            expected=space.dtype,
            fix="return the dtype of the observation space",
        )
    if "f" in kinds:
        say_once(
            "dtype", f"{space}", f"{where}: observations of dtype {array.dtype} are cast to {space.dtype}. Said once."
        )


def _refuse_shape(where: str, shape: tuple[int, ...], space: spaces.Space) -> None:
    raise EnvError(
        "An observation of the wrong shape.",
        where=where,
        got=f"shape {shape}",
        expected=f"shape {space.shape} of {space}",
        fix="correct the observation or the observation space",
    )


def reward_column(rewards: Any, where: Where) -> np.ndarray:
    """[N] float64 rewards.

    Raises:
        EnvError: a reward that is no real scalar, or not finite.
    """
    try:
        column = np.asarray(rewards, dtype=np.float64)
        good = column.ndim == 1
    except (ValueError, TypeError):
        column, good = np.empty(0), False
    if not good:
        row = next((i for i, value in enumerate(rewards) if not _is_real(value)), 0)
        raise EnvError(
            "A reward that is no real number.",
            where=where(row),
            got=_outline(rewards[row]),
            expected="a float",
            fix="return float(reward)",
        )
    if not math.isfinite(column.sum()) and not np.isfinite(column).all():
        row = int(np.argmin(np.isfinite(column)))
        raise EnvError(
            "A NaN or infinite reward.", where=where(row), got=column[row], expected="a finite float", fix="bound it"
        )
    return column


def flag_column(flags: Any, name: str, where: Where) -> np.ndarray:
    """[N] booleans.

    Raises:
        EnvError: a flag that is not a boolean.
    """
    column = np.asarray(flags)
    if column.dtype != np.bool_ or column.ndim != 1:
        row = next((i for i, flag in enumerate(flags) if not isinstance(flag, bool | np.bool_)), 0)
        raise EnvError(
            f"A {name} flag that is not a boolean.",
            where=where(row),
            got=flags[row],
            expected="True or False",
            fix=f"return bool({name})",
        )
    return column


def check_info(info: Any, where: str) -> None:
    """An info must be a dict."""
    if not isinstance(info, dict):
        raise EnvError("An info that is no dict.", where=where, got=info, expected="a dict", fix="return {}")


def failed(error: Exception, doing: str, where: str, action: Any = None) -> RollaxError:
    """The error to raise from one that user code raised: it names the sub-environment and the action taken."""
    return EnvError(
        f"The environment raised {type(error).__name__} in {doing}: {error}",
        where=where,
        got="the traceback above" if action is None else f"action {action!r}; the traceback above",
        fix="correct the environment",
    )


def _is_real(value: Any) -> bool:
    try:
        return np.asarray(value, dtype=np.float64).ndim == 0
    except (ValueError, TypeError):
        return False


def _outline(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: ({', '.join(type(part).__name__ for part in value)})"
    return f"{type(value).__name__}: {value!r}"
