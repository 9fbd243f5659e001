"""Checks of a fragment before it is added to a replay buffer, and the layout of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.batch.finite import first_not_finite
from rollax.core import trees
from rollax.core.space_json import key_from_json, key_to_json
from rollax.core.stored_values import wrong_value
from rollax.errors import BatchError, NonFiniteError

_MARKS = (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.TRAJECTORY_ID)

_STORED_KINDS = "biuf"
"""The kinds of dtypes that are stored: not objects, and not those that other packages add, such as bfloat16."""
Layout = Any
"""Structure, row shapes and dtypes of a column; `layout_to_json` converts it to JSON values."""


def check_fragment(fragment: SampleBatch, names: Sequence[str], where: str) -> Fragment:
    """The batch, if it is a fragment that can be stored; for the errors see `UniformReplay.add`."""
    missing = [name for name in (*names, *_MARKS) if name not in fragment]
    if missing or not isinstance(fragment, Fragment) or SampleBatch.OBS not in fragment.after:
        got = f"no columns {missing}" if missing else f"a {type(fragment).__name__} without what came after its rows"
        raise BatchError("The batch cannot be added to a replay buffer.", where, got).expected(
            f"a Fragment with the columns {[*names, *_MARKS]}, and `obs` after its segments",
            "name them in `reads` of the algorithm, and return from postprocessing what "
            "super().postprocess_trajectory returns",
        )
    for name in names:
        dtypes = [str(leaf.dtype) for leaf in trees.leaves(fragment[name]) if leaf.dtype.kind not in _STORED_KINDS]
        if dtypes:
            raise BatchError(
                "A replay buffer stores numbers of NumPy.", f"{where}, column {name!r}", f"dtype {dtypes[0]}"
            ).expected(
                "booleans, integers or floats of NumPy's own dtypes",
                "leave the column out of the buffer's columns, or convert it; a model whose state is bfloat16 may "
                "return it as float32",
            )
    if fragment[SampleBatch.REWARDS].ndim != 1:
        raise BatchError(
            "The rewards are not one number for each row.",
            f"{where}, column 'rewards'",
            f"shape {fragment[SampleBatch.REWARDS].shape}",
        ).expected("[rows]", "sum the rewards of each row")
    inside = (fragment[SampleBatch.TERMINATEDS] | fragment[SampleBatch.TRUNCATEDS]) & ~fragment.last
    if inside.any():
        expected = "ends only in the last row of a segment"
        raise BatchError(
            "A trajectory ends inside a segment.", f"{where}, row {int(np.flatnonzero(inside)[0])} of {len(fragment)}"
        ).expected(expected, "add the row to the fragment's ends, and what came after it to `after`")
    for name in names:
        _check_numbers(name, fragment[name], "row", np.arange(len(fragment)), len(fragment), where)
        if name in fragment.after:
            segments = np.flatnonzero(fragment.goes_on)
            after = trees.index(fragment.after[name], segments)
            _check_numbers(name, after, "segment", segments, len(fragment.goes_on), where)
    return fragment


def _check_numbers(name: str, column: trees.Tree, what: str, places: np.ndarray, count: int, where: str) -> None:
    """Refuses NaN and infinity, by the rule of `first_not_finite`; row i is number `places[i]` of `count`."""
    bad = first_not_finite(name, column)
    if bad is not None:
        raise NonFiniteError(
            "The fragment contains NaN or infinity; nothing of it is stored in the replay buffer.",
            f"{where}, column {name!r}, {what} {places[bad.row]} of {count}",
            bad.number,
        ).expected(
            "finite numbers", "look in callbacks, filters and postprocessing: values of environments are checked before"
        )


def check_layouts(fragment: Fragment, layouts: Mapping[str, Layout], where: str) -> None:
    """Raises BatchError if a column has another layout than in the first fragment."""
    for name, expected in layouts.items():
        columns = [batch[name] for batch in (fragment, fragment.after) if name in batch]
        for got in (layout for layout in map(layout_of, columns) if layout != expected):
            what = "The rows of the column are unlike those in the replay buffer."
            fix = "add fragments of one policy only, sampled from the same spaces"
            raise BatchError(what, f"{where}, column {name!r}", f"row {got}", expected=f"row {expected}", fix=fix)


def layout_of(tree: trees.Tree) -> Layout:
    if isinstance(tree, dict):
        return {"dict": {key: layout_of(part) for key, part in tree.items()}}
    if isinstance(tree, tuple | list):
        return {type(tree).__name__: [layout_of(part) for part in tree]}
    return {"shape": list(tree.shape[1:]), "dtype": tree.dtype.str}


def layout_to_json(layout: Layout) -> Any:
    """The layout as JSON values, for `empty_column`."""
    if "dict" in layout:
        # A list of pairs, because keys may be other values than strings.
        return {"dict": [[key_to_json(key), layout_to_json(part)] for key, part in layout["dict"].items()]}
    for kind in ("tuple", "list"):
        if kind in layout:
            return {kind: [layout_to_json(part) for part in layout[kind]]}
    return layout


def empty_column(layout: Any, where: str) -> trees.Tree:
    """An empty column, from a layout or its JSON values; raises CheckpointError for any other value."""
    try:
        return _empty(layout)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise wrong_value(where, f"{layout!r} ({error})", "shapes and types of its arrays") from error


def _empty(layout: Any) -> trees.Tree:
    if "dict" in layout:
        parts = layout["dict"]
        if isinstance(parts, dict):  # also in the JSON of older versions
            return {key: _empty(part) for key, part in parts.items()}
        return {key_from_json(key): _empty(part) for key, part in parts}
    for kind in (tuple, list):
        if kind.__name__ in layout:
            return kind(_empty(part) for part in layout[kind.__name__])
    dtype = np.dtype(layout["dtype"])
    if dtype.kind not in _STORED_KINDS:
        raise ValueError(f"not numbers: {dtype}")
    return np.empty((0, *layout["shape"]), dtype)


def without_repeats(fragment: Fragment) -> Iterator[Fragment]:
    """Splits a fragment, which may be a concatenation, into parts in which no trajectory has two segments."""
    trajectories = fragment[SampleBatch.TRAJECTORY_ID][fragment.ends]
    if len(np.unique(trajectories)) == len(trajectories):
        yield fragment
        return
    start, seen = 0, set()
    for trajectory, first in zip(trajectories.tolist(), fragment.starts.tolist(), strict=True):
        if trajectory in seen:
            yield fragment[start:first]
            start, seen = first, set()
        seen.add(trajectory)
    yield fragment[start:]
