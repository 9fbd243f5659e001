"""Columns of batches: conversion of values, indices of rows, and checks."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.core import trees
from rollax.errors import BatchError

if TYPE_CHECKING:
    from rollax.batch.sample_batch import SampleBatch

Columns = Mapping[str, Any]
"""Name -> column, an array or a tree of arrays; also name -> parameter of a model."""

INFOS = "infos"
STATES = ("state_in", "state_out")
PER_SEQUENCE = ("state_in", "seq_lens", "burn_in")
"""The columns of a padded batch with one row per sequence."""


class MissingColumnError(BatchError, KeyError):
    """The batch does not have the requested column."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted string with \n in it


def as_column(name: str, value: Any) -> trees.Tree:
    """Returns the value as a column; lists of numbers become arrays. BatchError for a scalar or for unequal rows."""
    if isinstance(value, list) and name == INFOS:
        return np.fromiter(value, dtype=object, count=len(value))
    if isinstance(value, list) and not any(np.ndim(leaf) for leaf in trees.leaves(value)):
        # A list is a structure if it holds arrays (the parts of a recurrent state), and rows if it holds numbers.
        no_state = not value and name in STATES
        value = value if no_state else _rows_from_list(name, value)
    column = trees.tree_map(np.asarray, value)
    if any(leaf.ndim == 0 for leaf in trees.leaves(column)):
        raise BatchError("The column has no rows.", f"column {name!r}", value).expected(
            "an array with one row per step, or a dict, tuple or list of such arrays",
            "use np.full(len(batch), value) for a constant",
        )
    return column


def _rows_from_list(name: str, rows: list[Any]) -> np.ndarray:
    try:
        array = np.array(rows)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype == object:
        raise BatchError("The list cannot be converted to an array.", f"column {name!r}", rows).expected(
            "numbers, flags or strings, in rows of equal shape",
            "stack structured rows with rollax.core.spaces.stack(space, rows); pass ids as an object array",
        )
    return array


def positions_of(index: Any, length: int) -> np.ndarray:
    """Returns the positions, among `length` rows, that an index array or mask selects; BatchError for other indices."""
    array = np.asarray(index)
    if array.dtype == bool and array.shape == (length,):
        return np.flatnonzero(array)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.intp)
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    if whole and -length <= array.min() and array.max() < length:
        return array
    raise BatchError(
        "The index does not select rows.",
        "SampleBatch",
        f"positions {array.min()} to {array.max()}" if whole else f"{array.dtype} array of shape {array.shape}",
    ).expected(f"[n] integers in {-length}..{length - 1}, or a mask of {length} booleans", "use batch[2:5] for a slice")


def positions_in(array: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[K] the position of each of K values in an array [N], which contains all of them, in any order."""
    order = np.argsort(array)
    return order[np.searchsorted(array, values, sorter=order)]


def codes(ids: np.ndarray) -> np.ndarray:
    """[N] int64: equal numbers for equal ids."""
    if ids.dtype != object:
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    # Ids of mixed types cannot be sorted.
    seen: dict[Any, int] = {}
    return np.fromiter((seen.setdefault(value, len(seen)) for value in ids.tolist()), dtype=np.int64, count=len(ids))


def check_alike(first: SampleBatch, other: SampleBatch, where: str) -> None:
    expected: Any = "the same columns, each of the same structure and row shape"
    fix = "fill the column in every batch, or delete it from all of them"
    if first.keys() != other.keys():
        missing, extra = ([n for n in a if n not in b] for a, b in ((first, other), (other, first)))
        got = f"columns missing: {missing}; columns that batch 0 lacks: {extra}"
        raise BatchError("The batches have different columns.", where=where, got=got, expected=expected, fix=fix)
    if first.seq_lens is not None and first.count and other.count and first.max_seq_len != other.max_seq_len:
        raise BatchError(
            "The batches are padded to different lengths.", where, f"sequences of {other.max_seq_len} rows"
        ).expected(
            f"sequences of {first.max_seq_len} rows", "concatenate before sequences(), or call it with one max_seq_len"
        )
    for name, column in first.items():
        ours, theirs = _layout(column), _layout(other[name])
        if ours != theirs:
            raise BatchError(
                "The rows of a column differ in shape between the batches.",
                f"{where}, column {name!r}",
                f"row {theirs}",
            ).expected(f"row {ours}", "sample all batches from the same spaces")


def _layout(column: trees.Tree) -> Any:
    """Returns the structure and row shapes of a column, for a comparison that ignores the order of a dict's keys."""
    return trees.tree_map(lambda leaf: f"of shape {leaf.shape[1:]}", column)


def check_kind(parts: Sequence[Any], kind: type) -> None:
    if not parts:
        raise BatchError(
            "There is nothing to concatenate.", where="concat_samples", got=parts, fix="pass one batch or more"
        )
    if not all(isinstance(part, kind) for part in parts):
        raise BatchError(
            "Batches of different kinds cannot be concatenated.",
            "concat_samples",
            sorted({type(part).__name__ for part in parts}),
        ).expected(f"only {kind.__name__}", "wrap a SampleBatch: MultiAgentBatch({policy_id: batch}, batch.env_steps)")


def check_batch(batch: Any, kind: type, where: str) -> None:
    """Raises BatchError unless the batch is of this kind: a SampleBatch, or a Fragment."""
    if isinstance(batch, kind):
        return
    fixes = {
        "SampleBatch": "wrap the columns, SampleBatch({...}); of a MultiAgentBatch pass the rows of one policy, "
        "batch[policy_id]",
        "Fragment": "pass what a RolloutWorker samples, or Fragment(columns, ends, after)",
    }
    raise BatchError.is_not("This", f"a {kind.__name__}", where, type(batch).__name__).fix(fixes[kind.__name__])


def length_error(name: str, got: int, expected: str) -> BatchError:
    return BatchError("The column has the wrong length.", f"column {name!r}", f"{got} rows").expected(
        expected, "give every column of the batch one row per step"
    )


def whole_number(value: Any, least: int, where: str) -> int:
    """Returns the value as an int; raises BatchError unless it is an integer of at least `least`."""
    number = None if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__") else operator.index(value)
    if number is None or number < least:
        raise BatchError(
            "This is not a valid number of rows or steps.", where=where, got=value, expected=f"an integer >= {least}"
        )
    return number
