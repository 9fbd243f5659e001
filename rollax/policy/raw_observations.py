"""Checked columns of observations that do not come from an environment of the library."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core import trees
from rollax.core.spaces import Path, bounds, in_dtype, of_each, path_text, walk
from rollax.errors import EnvError, NonFiniteError, page

if TYPE_CHECKING:
    from rollax.policy.policy import Policy

_STACKS = "stacks-of-observations-and-repeated-actions"


def columns_for(policy: Policy, observations: Any, *, one: bool = False) -> trees.Tree:
    """Returns columns of N observations for a policy, or of one; see `columns_of` and `columns_of_one`.

    With the config key `frame_stack`, the error for observations that do not fit says what to stack.
    """
    convert, what = (columns_of_one, "an observation") if one else (columns_of, "the observations")
    try:
        return convert(policy.observation_space, observations, f"{what} for policy {policy.name!r}")
    except EnvError as error:
        if (count := getattr(policy.config, "frame_stack", 1)) > 1:
            stacks = "the stack" if one else "stacks"
            error.fix(
                f"pass {stacks} of the last {count} observations of the environment, the newest last, because the "
                f"policy was trained with frame_stack={count}: see {page('environments', _STACKS)}"
            )
        raise


def columns_of_one(space: Space, obs: Any, where: str) -> trees.Tree:
    """Returns columns of one observation in the space's dtypes, without keys that are not in the space.

    Raises EnvError for a missing key, values that are not numbers, a wrong length or shape, or a discrete value outside
    of its bounds, and NonFiniteError for a NaN, or for an infinity in a bounded space.
    """
    return _columns(space, obs, where, one=True)


def columns_of(space: Space, observations: Any, where: str) -> trees.Tree:
    """Returns columns of N observations, from a list of observations or from columns; see `columns_of_one`.

    Raises EnvError also for columns of different lengths, and if there is no observation.
    """
    if isinstance(observations, list):
        columns = _stacked(space, observations, where) if observations else None
    else:
        columns = _columns(space, observations, where, one=False)
    lengths = {len(leaf) for leaf in trees.leaves(columns)} if columns is not None else {0}
    if len(lengths) > 1 or lengths == {0}:
        got = "no observation" if lengths == {0} else f"columns of {sorted(lengths)} rows"
        raise _misfit(where, got, "N observations, at least one", one=False)
    return columns


def _stacked(space: Space, observations: list[Any], where: str) -> trees.Tree:
    """Columns of a list of observations; an error names the row."""

    def enter(outer: Space, path: Path, values: list[Any]) -> None:
        for value in values:
            _check_parts(where, True, outer, path, value)

    try:
        return walk(partial(_column, where, False), space, observations, part=of_each, enter=enter)
    except EnvError:
        for row, obs in enumerate(observations):
            columns_of_one(space, obs, f"{where}, row {row}")
        raise


def _columns(space: Space, value: Any, where: str, *, one: bool) -> trees.Tree:
    return walk(partial(_column, where, one), space, value, enter=partial(_check_parts, where, one))


def _check_parts(where: str, one: bool, space: Any, path: Path, value: Any) -> None:
    """Raises EnvError for a value that lacks a key of a Dict space, or whose length differs from a Tuple space."""
    place = where + path_text(path)
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not value.keys() >= space.spaces.keys():
            got = f"keys {sorted(map(str, value))}" if isinstance(value, Mapping) else value
            raise _misfit(place, got, f"a dict with the keys {sorted(map(str, space.spaces))}", one=one)
    elif not isinstance(value, tuple | list) or len(value) != len(space.spaces):
        raise _misfit(place, value, f"a tuple of {len(space.spaces)}, one part for each of {space}", one=one)


def _column(where: str, one: bool, space: Space, path: Path, value: Any) -> np.ndarray:
    where += path_text(path)
    try:
        column = in_dtype(space, [value] if one else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _misfit(where, value, f"numbers of {space}", one=one) from error
    shape = space.shape or ()
    if column.ndim == 0 or column.shape[1:] != shape:
        got = "None" if value is None else f"shape {column.shape[1:] if one else column.shape}"
        expected = f"shape {shape}, one observation of {space}" if one else f"rows of shape {shape}, of {space}"
        raise _misfit(where, got, expected, one=one)
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            _check_finite(space, column, where)
    elif not isinstance(space, spaces.Box):
        low, high = bounds(space)
        if ((column < low) | (column > high)).any():
            raise _misfit(where, value, f"numbers from {low} to {high}, of {space}", one=one)
    return column


def _check_finite(space: Space, column: np.ndarray, where: str) -> None:
    if np.isnan(column).any() or not isinstance(space, spaces.Box) or space.is_bounded("both"):
        row = int(np.argmin(np.isfinite(column).reshape(len(column), -1).all(axis=1)))
        raise NonFiniteError(
            "The observation contains NaN or infinity.",
            where if len(column) == 1 else f"{where}, row {row}",
            column[row],
        ).expected(f"finite numbers in {space}", "check the environment or sensor, and what processes its observations")


def _misfit(where: str, got: Any, expected: str, *, one: bool) -> EnvError:
    return EnvError("The observation does not fit the observation space.", where, got, expected=expected).fix(
        "pass one observation as the environment returns it; pass a list of several to compute_actions"
        if one
        else "pass a list of observations as the environment returns them, or columns of them: arrays [N, ...]"
    )
