"""Checks on observations: in full for single ones, and the cheap ones in bulk, for columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax import trees
from rollax.env.checks import Where, all_finite, outline, say_once
from rollax.errors import EnvError
from rollax.spaces import bounds, stack, zeros

# Numbers of a kind may narrow (float64 to float32), whole numbers may widen into floats; the rest loses meaning.
_SAFE_KINDS = ("ff", "ii", "uu", "iu", "ui", "if", "uf", "bi", "bu", "bf")


def stacked(space: spaces.Space, values: Sequence[Any], where: Where) -> trees.Tree:
    """Single observations as columns of the space's dtypes, checked in bulk.

    Raises:
        EnvError: a wrong shape, wrong Dict keys, a dtype that cannot be cast safely, a NaN.
    """
    if not len(values):
        return zeros(space, 0)
    try:
        columns = _stacked_alike(space, values, where)
        _check_arrays(space, columns, where)
        return columns
    except Exception as error:
        # Which one is it? One by one, and in full: that also finds what only hides behind the first problem.
        for row, value in enumerate(values):
            check_observation(space, value, where(row))
        try:
            return stack(space, values)  # each can be cast, only not all of them from the dtype that they have together
        except Exception:
            raise EnvError(
                "Observations that do not stack.", where=where(0), got=error, expected=space, fix="return equal shapes"
            ) from error


def _stacked_alike(space: spaces.Space, values: Sequence[Any], where: Where) -> trees.Tree:
    """Columns of values that have the structure of the space, and dtypes that can be cast to its own."""
    if isinstance(space, spaces.Dict):
        if set(map(len, values)) != {len(space.spaces)}:
            raise ValueError("Dict observations with other keys than the space")
        return {
            key: _stacked_alike(part, [value[key] for value in values], where) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if set(map(len, values)) != {len(space.spaces)}:
            raise ValueError("Tuple observations of other lengths than the space")
        return tuple(_stacked_alike(part, [value[i] for value in values], where) for i, part in enumerate(space.spaces))
    return _cast(space, np.array(values), where, silent=True)  # it is said of single ones, which are looked at first


def as_columns(space: spaces.Space, columns: trees.Tree, count: int, where: Where) -> trees.Tree:
    """Columns that an environment made itself: the same arrays, but for a cast where the dtype is not the space's.

    Raises:
        EnvError: a wrong structure, shape or number of rows, a dtype that cannot be cast safely, a NaN.
    """
    if (
        isinstance(columns, np.ndarray)
        and columns.dtype == space.dtype
        and columns.shape == (count, *(space.shape or ()))
    ):
        _check_finite(space, columns, where)
        return columns
    if isinstance(space, spaces.Dict):
        _check_keys(space, columns, where(0))
        return {
            key: as_columns(part, columns[key], count, _at(where, f"key {key!r}")) for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        _check_length(space, columns, where(0))
        return tuple(
            as_columns(part, columns[i], count, _at(where, f"element {i}")) for i, part in enumerate(space.spaces)
        )
    array = _array(columns)
    if array.shape != (count, *(space.shape or ())):
        raise EnvError(
            "Observations of the wrong shape.",
            where=where(0),
            got=f"shape {array.shape}" if array.dtype.kind != "O" else outline(columns),
            expected=f"shape {(count, *(space.shape or ()))}: {count} sub-environments, {space}",
            fix="correct the observations or the observation space",
        )
    array = _cast(space, array, where)
    _check_finite(space, array, where)
    return array


def check_bounds(space: spaces.Space, columns: trees.Tree, where: Where) -> None:
    """Says once, in bulk, that observations lie outside of their space."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_bounds(part, columns[key], _at(where, f"key {key!r}"))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            check_bounds(part, columns[i], _at(where, f"element {i}"))
    else:
        low, high = bounds(space)
        outside = (columns < low) | (columns > high)
        if outside.any():
            row = int(np.argwhere(outside)[0][0])
            _say_outside(space, columns[row], where(row))


def check_observation(space: spaces.Space, value: Any, where: str) -> None:
    """One observation against its space, in full; out of bounds is said once, everything else is refused.

    Raises:
        EnvError: wrong Dict keys, Tuple length or shape, a dtype that cannot be cast safely, a NaN.
    """
    if isinstance(space, spaces.Dict):
        _check_keys(space, value, where)
        for key, part in space.spaces.items():
            check_observation(part, value[key], f"{where}, key {key!r}")
    elif isinstance(space, spaces.Tuple):
        _check_length(space, value, where)
        for i, part in enumerate(space.spaces):
            check_observation(part, value[i], f"{where}, element {i}")
    else:
        _check_leaf(space, value, where)


def _check_leaf(space: spaces.Space, value: Any, where: str) -> None:
    array = _array(value)
    if array.shape != (space.shape or ()):
        _refuse_shape(where, array.shape, space, value)
    _check_finite(space, array[None], lambda row: where)
    _cast(space, array[None], lambda row: where)
    low, high = bounds(space)
    if ((array < low) | (array > high)).any():
        _say_outside(space, value, where)


def _check_arrays(space: spaces.Space, columns: trees.Tree, where: Where) -> None:
    """Shape and finiteness of columns of the space's own structure and dtypes."""
    if isinstance(columns, dict):
        assert isinstance(space, spaces.Dict)
        for key, part in space.spaces.items():
            _check_arrays(part, columns[key], _at(where, f"key {key!r}"))
    elif isinstance(columns, tuple):
        assert isinstance(space, spaces.Tuple)
        for i, part in enumerate(space.spaces):
            _check_arrays(part, columns[i], _at(where, f"element {i}"))
    else:
        if columns.shape[1:] != (space.shape or ()):
            _refuse_shape(where(0), columns.shape[1:], space)
        _check_finite(space, columns, where)


def _check_finite(space: spaces.Space, columns: np.ndarray, where: Where) -> None:
    if columns.dtype.kind != "f" or all_finite(columns):
        return
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


def _check_keys(space: spaces.Dict, value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.keys() != space.spaces.keys():
        raise EnvError(
            "A Dict observation with the wrong keys.",
            where=where,
            got=sorted(map(str, value)) if isinstance(value, dict) else outline(value),
            expected=sorted(map(str, space.spaces)),
            fix="return exactly the keys of the observation space",
        )


def _check_length(space: spaces.Tuple, value: Any, where: str) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        raise EnvError(
            "A Tuple observation of the wrong length.",
            where=where,
            got=outline(value),
            expected=f"{len(space.spaces)} elements",
            fix="return one element per part of the observation space",
        )


def _array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return np.array([*value, None], dtype=object)[:-1]


def _cast(space: spaces.Space, array: np.ndarray, where: Where, *, silent: bool = False) -> np.ndarray:
    """The same numbers in the space's dtype; a cast of or to floats is said once.

    Raises:
        EnvError: a dtype that cannot be cast safely, or a number that the space's dtype cannot hold.
    """
    if array.dtype == space.dtype:
        return array
    assert space.dtype is not None
    kinds = array.dtype.kind + space.dtype.kind
    if kinds not in _SAFE_KINDS:
        raise EnvError(
            "An observation of a dtype that cannot be cast safely.",
            where=where(0),
            got=f"{array.dtype}: {array!r}",
            expected=str(space.dtype),
            fix="return the dtype of the observation space",
        )
    with np.errstate(over="ignore"):
        cast = array.astype(space.dtype)
    if space.dtype.kind != "f":
        lost = cast != array
    elif all_finite(cast):
        lost = None
    else:
        lost = np.isinf(cast) & np.isfinite(array)
    if lost is not None and lost.any():
        row = int(np.argwhere(lost)[0][0])
        raise EnvError(
            f"An observation that {space.dtype} cannot hold.",
            where=where(row),
            got=f"{array.dtype}: {array[row]!r}",
            expected=str(space),
            fix="return the dtype of the observation space, or give the space a wider one",
        )
    if "f" in kinds and not silent:
        said = f"{where(0)}: observations of dtype {array.dtype} are cast to {space.dtype}. Said once."
        say_once("dtype", str(space), said)
    return cast


def _refuse_shape(where: str, shape: tuple[int, ...], space: spaces.Space, value: Any = ()) -> None:
    raise EnvError(
        "An observation of the wrong shape.",
        where=where,
        got="None" if value is None else f"shape {shape}",
        expected=f"shape {space.shape} of {space}",
        fix="correct the observation or the observation space",
    )


def _say_outside(space: spaces.Space, value: Any, where: str) -> None:
    shown = np.array2string(np.asarray(value), threshold=20)
    say_once("bounds", str(space), f"{where}: an observation outside of its space {space}: {shown}. Said once.")


def _at(where: Where, part: str) -> Where:
    return lambda row: f"{where(row)}, {part}"
