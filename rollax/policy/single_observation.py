"""A single observation, handed over by whoever acts with a policy: checked, and made columns of one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax import trees
from rollax.errors import EnvError, NonFiniteError


def columns_of_one(space: Space, obs: Any, where: str) -> trees.Tree:
    """Columns of one observation, in the space's own dtypes.

    Args:
        space: of the observation.
        obs: the observation; entries that a Dict space does not name are left out.
        where: what error messages call the place.
    Raises:
        EnvError: no mapping with the keys, or no sequence of the length, or no array of the shape that the space has.
        NonFiniteError: a NaN, or an infinity where the space is bounded.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or not obs.keys() >= space.spaces.keys():
            got = f"keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else obs
            raise _misfit(where, got, f"a dict with the keys {sorted(map(str, space.spaces))}")
        return {key: columns_of_one(part, obs[key], f"{where}, key {key!r}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise _misfit(where, obs, f"a tuple of {len(space.spaces)}, one part for each of {space}")
        parts = zip(space.spaces, obs, strict=True)
        return tuple(columns_of_one(part, value, f"{where}, element {i}") for i, (part, value) in enumerate(parts))
    try:
        column = np.array([obs], dtype=space.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise _misfit(where, obs, f"numbers of {space}") from error
    if column.shape[1:] != (space.shape or ()):
        got = "None" if obs is None else f"shape {column.shape[1:]}"
        raise _misfit(where, got, f"shape {space.shape}, one observation of {space}")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        _check_finite(space, column, where)
    return column


def _check_finite(space: Space, column: np.ndarray, where: str) -> None:
    if np.isnan(column).any() or not isinstance(space, spaces.Box) or space.is_bounded("both"):
        raise NonFiniteError(
            "A NaN or infinite observation.",
            where=where,
            got=column[0],
            expected=f"finite numbers in {space}",
            fix="look for what made it, on the way from the environment or sensor",
        )


def _misfit(where: str, got: Any, expected: str) -> EnvError:
    return EnvError(
        "An observation that does not fit.",
        where=where,
        got=got,
        expected=expected,
        fix="pass one observation as the environment returns it; of many, one after another",
    )
