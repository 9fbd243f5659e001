"""What batches refuse: numbers that count nothing, columns of the wrong length, batches that do not go together."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax import trees
from rollax.errors import BatchError

if TYPE_CHECKING:
    from rollax.batch.sample_batch import SampleBatch


class MissingColumnError(BatchError, KeyError):
    """A column is asked for that the batch does not have."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted string with \n in it


def check_alike(first: SampleBatch, other: SampleBatch, where: str) -> None:
    expected: Any = "the same columns, each of the same structure and row shape"
    fix = "fill the column in every batch, or delete it from all of them"
    if first.keys() != other.keys():
        missing, extra = ([n for n in a if n not in b] for a, b in ((first, other), (other, first)))
        got = f"columns missing: {missing}; columns that batch 0 lacks: {extra}"
        raise BatchError("Batches with different columns.", where=where, got=got, expected=expected, fix=fix)
    if first.seq_lens is not None and first.count and other.count and first.max_seq_len != other.max_seq_len:
        raise BatchError(
            "Batches padded to different lengths.",
            where=where,
            got=f"sequences of {other.max_seq_len} rows",
            expected=f"sequences of {first.max_seq_len} rows",
            fix="concatenate before sequences(), or call it with one max_seq_len",
        )
    for name, column in first.items():
        ours, theirs = _layout(column), _layout(other[name])
        if ours != theirs:
            raise BatchError(
                "A column whose rows differ between the batches.",
                where=f"{where}, column {name!r}",
                got=f"row {theirs}",
                expected=f"row {ours}",
                fix="sample all batches from the same spaces",
            )


def _layout(column: trees.Tree) -> Any:
    """Structure and row shapes, comparable; the order of a dict's keys does not count."""
    return trees.tree_map(lambda leaf: f"of shape {leaf.shape[1:]}", column)


def check_kind(parts: Sequence[Any], kind: type) -> None:
    if not parts:
        raise BatchError("There is nothing to concatenate.", where="concat_samples", got=parts, fix="give a batch")
    if not all(isinstance(part, kind) for part in parts):
        raise BatchError(
            "Batches of different kinds cannot be concatenated.",
            where="concat_samples",
            got=sorted({type(part).__name__ for part in parts}),
            expected=f"only {kind.__name__}",
            fix="wrap a SampleBatch: MultiAgentBatch({policy_id: batch}, batch.env_steps)",
        )


def length_error(name: str, got: int, expected: str) -> BatchError:
    return BatchError(
        "A column of the wrong length.",
        where=f"column {name!r}",
        got=f"{got} rows",
        expected=expected,
        fix="give every column of the batch one row per step",
    )


def whole_number(value: Any, least: int, where: str) -> int:
    """The value as an int, where it is a whole number of at least `least`."""
    number = None if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__") else operator.index(value)
    if number is None or number < least:
        raise BatchError("Not a number of rows or steps.", where=where, got=value, expected=f"an integer >= {least}")
    return number
