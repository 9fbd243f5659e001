"""Conversion of the values of a space to columns in the dtypes of the space, with checks in bulk or of single values.

`stacked` and `as_columns` check what is cheap; `check_value` checks one value in full. Callers pass two functions:
`where` returns the location of a row, and `note` takes harmless findings, such as numbers outside of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core import trees
from rollax.core.numbers import all_finite
from rollax.core.spaces import ACTION_MASK, Path, bounds, choices, have_choices, of_each, path_text, stack, walk, zeros
from rollax.errors import EnvError, repr_of

# Numbers of one kind may narrow (float64 to float32), and integers may become floats; other casts change values.
_SAFE_KINDS = ("ff", "ii", "uu", "iu", "ui", "if", "uf", "bi", "bu", "bf")

_MOST_SHOWN = 20
"""The most elements of an array that an error shows."""


Where = Callable[[int], str]
"""Returns the location of a row in an error message."""

Note = Callable[[str, str, str], None]
"""Takes a harmless finding: its topic, its subject and a message."""


def stacked(space: spaces.Space, values: Sequence[Any], where: Where, note: Note | None = None) -> trees.Tree:
    """Returns single observations as columns in the dtypes of the space, checked in bulk.

    Raises:
        EnvError: a wrong shape, wrong Dict keys, a dtype that cannot be cast safely, a NaN, or an infinity in a bounded
            space.
    """
    if not len(values):
        return zeros(space, 0)

    def column(leaf: spaces.Space, path: Path, parts: Sequence[Any]) -> np.ndarray:
        return _checked_leaf(leaf, path, np.array(parts), len(parts), where)

    try:
        return walk(column, space, values, part=of_each, enter=_check_lengths)
    except Exception as error:
        # A full check of each value finds the row, and raises a more precise error.
        for row, value in enumerate(values):
            check_value(space, value, where(row), note)
        try:
            return stack(space, values)  # each row can be cast, although the common dtype of the rows cannot
        except Exception:
            raise EnvError("The observations cannot be stacked.", where(0), error).expected(
                space, "return equal shapes"
            ) from error


def _check_lengths(space: spaces.Dict | spaces.Tuple, path: Path, values: Sequence[Any]) -> None:
    if set(map(len, values)) != {len(space.spaces)}:
        raise ValueError(f"the structure of the observations is not that of {space}")


def as_columns(
    space: spaces.Space, columns: trees.Tree, count: int, where: Where, note: Note | None = None
) -> trees.Tree:
    """Returns columns from an environment, cast to the dtypes of the space.

    Raises:
        EnvError: a wrong structure, shape or number of rows, a dtype that cannot be cast safely, a NaN, or an infinity
            in a bounded space.
    """

    def column(leaf: spaces.Space, path: Path, part: Any) -> np.ndarray:
        return _checked_leaf(leaf, path, _array(part), count, where, note)

    return walk(column, space, columns, enter=lambda outer, path, tree: _check_structure(outer, path, tree, where(0)))


def check_bounds(space: spaces.Space, columns: trees.Tree, where: Where, note: Note) -> None:
    """Calls `note` for each part of the space with observations outside of the bounds."""

    def check(leaf: spaces.Space, path: Path, column: np.ndarray) -> None:
        beyond = outside(leaf, column)
        if beyond.any():
            row = int(np.argwhere(beyond)[0][0])
            shown = np.array2string(column[row], threshold=20)
            message = (
                f"{where(row)}{path_text(path)}: an observation is outside its space {leaf}: {shown}. Logged once."
            )
            note("bounds", str(leaf), message)

    walk(check, space, columns)


def check_value(space: spaces.Space, value: Any, where: str, note: Note | None = None) -> None:
    """Checks one observation in full: `note` gets values out of bounds; all other errors raise EnvError."""

    def check(leaf: spaces.Space, path: Path, part: Any) -> None:
        column = _array(part)[None]
        _checked_leaf(leaf, path, column, None, lambda row: where, note)
        if note is not None:
            check_bounds(leaf, column, lambda row: where + path_text(path), note)

    walk(check, space, value, enter=lambda outer, path, tree: _check_structure(outer, path, tree, where))


def _checked_leaf(
    space: spaces.Space, path: Path, column: np.ndarray, count: int | None, where: Where, note: Note | None = None
) -> np.ndarray:
    """Returns the checked column, [count, *shape of the leaf space], in the dtype of the space.

    `count` is None for a single observation, whose leading axis is left out of error messages. `note` gets casts from
    or to floats.
    """
    shape = space.shape or ()
    if column.shape != ((1 if count is None else count), *shape):
        single = count is None
        given = column[0] if single and column.dtype == object and column.ndim == 1 else column
        got, fix = (
            f"shape {column.shape[1:] if single else column.shape}",
            "correct the observation or the observation space",
        )
        if given is None:
            got = "None"
        elif isinstance(given, dict):
            got = f"a dict with the keys {list(given)}"
            fix = "declare a gymnasium.spaces.Dict; an environment of several agents is a subclass of MultiAgentEnv"
        raise EnvError.wrong_shape(
            "The observation has" if single else "The observations have",
            where(0) + path_text(path),
            got,
            f"shape {shape} of {space}" if single else f"shape {(count, *shape)}: {count} sub-environments, {space}",
        ).fix(fix)
    if column.dtype != space.dtype:
        column = _cast(space, path, column, where, note)
    if column.dtype.kind == "f":
        check_finite(space, path, column, where, infinite=True)
    return column


def outside(space: spaces.Space, column: Any) -> NDArray[np.bool_]:
    """Returns a mask of the numbers outside of the bounds of a leaf space."""
    low, high = bounds(space)
    return (column < low) | (column > high)


def check_finite(space: spaces.Space, path: Path, column: np.ndarray, where: Where, *, infinite: bool = False) -> None:
    """Raises EnvError for NaN and infinity in a leaf; `infinite` allows infinities in a Box that lacks a bound."""
    if all_finite(column):
        return
    allowed = infinite and isinstance(space, spaces.Box) and not space.is_bounded("both")
    bad = np.isnan(column) if allowed else ~np.isfinite(column)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise not_finite(space, column[row], where(row) + path_text(path))


def mask_starts(observation_space: Any, action_space: Any) -> NDArray[np.intp] | None:
    """Returns the index in an action mask at which the entries of each discrete action begin.

    None if the observations have no mask with one entry for each choice of the actions.
    """
    counts = [] if action_space is None else choices(action_space)
    mask = observation_space.spaces.get(ACTION_MASK) if isinstance(observation_space, spaces.Dict) else None
    return np.cumsum([0, *counts])[:-1] if counts and mask is not None and mask.shape == (sum(counts),) else None


def check_masks(columns: trees.Tree, starts: NDArray[np.intp], where: Where) -> None:
    """Raises EnvError for an action mask that allows no action."""
    allowed = have_choices(columns[ACTION_MASK], starts)
    if not allowed.all():
        raise EnvError.no_valid_action(where(int(np.argmin(allowed.all(axis=1)))), "no entry above 0")


def not_finite(space: spaces.Space, got: Any, where: str) -> EnvError:
    return (
        EnvError.not_finite("The observation", where, got)
        .fix("look in the env for its cause, such as a division by zero or an overflow")
        .expected(f"finite numbers in {space}")
    )


def _cast(space: spaces.Space, path: Path, array: np.ndarray, where: Where, note: Note | None) -> np.ndarray:
    """Returns the same numbers in the dtype of the space; raises EnvError if the cast would change them."""
    assert space.dtype is not None
    kinds = array.dtype.kind + space.dtype.kind
    if kinds not in _SAFE_KINDS:
        raise EnvError(
            "The dtype of the observation cannot be cast safely.",
            where(0) + path_text(path),
            f"{array.dtype}: {array!r}" if array.size <= _MOST_SHOWN else f"{array.dtype}, shape {array.shape[1:]}",
        ).expected(str(space.dtype), f"return the dtype of the observation space, as by obs.astype(np.{space.dtype})")
    with np.errstate(over="ignore"):
        cast = array.astype(space.dtype)
    lost = cast != array if space.dtype.kind != "f" else np.isinf(cast) & np.isfinite(array)
    if lost.any():
        row = int(np.argwhere(lost)[0][0])
        what = f"The observation cannot be represented in {space.dtype}."
        fix = "return the dtype of the observation space, or give the space a wider one"
        raise EnvError(what, where(row) + path_text(path), f"{array.dtype}: {array[row]!r}").expected(str(space), fix)
    if "f" in kinds and note is not None:
        said = f"observations of dtype {array.dtype} are cast to {space.dtype}. Logged once."
        note("dtype", str(space), f"{where(0)}{path_text(path)}: {said}")
    return cast


def _check_structure(space: spaces.Dict | spaces.Tuple, path: Path, value: Any, where: str) -> None:
    if isinstance(space, spaces.Tuple):
        if isinstance(value, tuple | list) and len(value) == len(space.spaces):
            return
        what, got, expected = "Tuple observation has the wrong length", outline(value), f"{len(space.spaces)} elements"
    else:
        if isinstance(value, dict) and value.keys() == space.spaces.keys():
            return
        what, expected = "Dict observation has the wrong keys", sorted(map(str, space.spaces))
        got = sorted(map(str, value)) if isinstance(value, dict) else outline(value)
    fix = "return the parts of the space"
    if isinstance(space, spaces.Dict) and not path and any(f"agent {agent!r}" in where for agent in space.spaces):
        fix = (
            "observation_space is the space of one agent; for spaces by agent, as in RLlib, set observation_spaces "
            "and action_spaces, dicts by agent id"
        )
    raise EnvError(f"The {what}.", where + path_text(path), got).expected(expected, fix)


def _array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return np.array([*value, None], dtype=object)[:-1]
    except Exception:  # a value of another library, such as a PyTorch tensor with a gradient
        single = np.empty((), dtype=object)
        single[()] = value
        return single


def outline(value: Any) -> str:
    """Returns the type of a value and, for a tuple or list, the types of its parts, else its `repr`."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: ({', '.join(type(part).__name__ for part in value)})"
    return f"{type(value).__name__}: {repr_of(value)}"
