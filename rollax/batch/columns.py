"""What a column of a batch may be made from, and which of its rows an index names."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax import trees
from rollax.errors import BatchError

INFOS = "infos"
STATES = ("state_in", "state_out")


def as_column(name: str, value: Any) -> trees.Tree:
    """The column that a value stands for: lists of plain numbers become arrays.

    Raises:
        BatchError: a value without rows, or a list that makes no array.
    """
    if isinstance(value, list) and name == INFOS:
        return np.fromiter(value, dtype=object, count=len(value))
    if isinstance(value, list) and not any(np.ndim(leaf) for leaf in trees.leaves(value)):
        # A list is a structure if it holds arrays (the parts of a recurrent state), and rows if it holds numbers.
        no_state = not value and name in STATES
        value = value if no_state else _rows_from_list(name, value)
    column = trees.tree_map(np.asarray, value)
    if any(leaf.ndim == 0 for leaf in trees.leaves(column)):
        raise BatchError(
            "A column without rows.",
            where=f"column {name!r}",
            got=value,
            expected="an array with one row per step, or a dict, tuple or list of such arrays",
            fix="use np.full(len(batch), value) for a constant",
        )
    return column


def _rows_from_list(name: str, rows: list[Any]) -> np.ndarray:
    try:
        array = np.array(rows)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype == object:
        raise BatchError(
            "A list that does not make an array.",
            where=f"column {name!r}",
            got=rows,
            expected="numbers, flags or strings, in rows of equal shape",
            fix="stack structured rows with rollax.spaces.stack(space, rows); make an object array of ids yourself",
        )
    return array


def positions_of(index: Any, length: int) -> np.ndarray:
    """The rows, out of `length`, that an index array or a mask names.

    Raises:
        BatchError: it names none, or some that are not there.
    """
    array = np.asarray(index)
    if array.dtype == bool and array.shape == (length,):
        return np.flatnonzero(array)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.intp)
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    if whole and -length <= array.min() and array.max() < length:
        return array
    raise BatchError(
        "This does not choose rows.",
        where="SampleBatch",
        got=f"positions {array.min()} to {array.max()}" if whole else f"{array.dtype} array of shape {array.shape}",
        expected=f"[n] integers in {-length}..{length - 1}, or a mask of {length} booleans",
        fix="use batch[2:5] for a slice",
    )


def codes(ids: np.ndarray) -> np.ndarray:
    """[N] int64: equal numbers for equal ids."""
    if ids.dtype != object:
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    # Ids of mixed types have no order to sort them by.
    seen: dict[Any, int] = {}
    return np.fromiter((seen.setdefault(value, len(seen)) for value in ids.tolist()), dtype=np.int64, count=len(ids))
