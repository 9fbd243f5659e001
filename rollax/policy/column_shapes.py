"""Whether columns fit a space: their keys, shapes and kinds of numbers, without reading a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnasium import Space, spaces

from rollax.core import trees
from rollax.core.numbers import NON_NUMERIC_KINDS
from rollax.core.spaces import Path, at, leaves

_WHOLE = frozenset("iub")
_MISFIT = (AttributeError, IndexError, KeyError, TypeError)


class Misfit(NamedTuple):
    """The first part of columns that does not fit.

    Attributes:
        path: where it is in the columns.
        space: its space.
        got: its type and shape, or the value in its place.
        shape: the expected shape.
        whole: whether integers are expected.
        of_kind: whether only the kind of numbers differs.
    """

    path: Path
    space: Space
    got: Any
    shape: tuple[int | str, ...]
    whole: bool
    of_kind: bool


class ColumnShapes:
    """The shapes of a space's parts, against which a policy checks columns in each call.

    Args:
        space: columns [N, ...] contain its values, or encoded values, such as floats in place of integers.
        whole: refuse floats in the place of integers.
    """

    def __init__(self, space: Space, *, whole: bool = False) -> None:
        self._parts = [
            (path, tuple(leaf.shape or ()), whole and not isinstance(leaf, spaces.Box)) for path, leaf in leaves(space)
        ]
        self._space = space

    def misfit(self, columns: trees.Tree, rows: int | None = None) -> Misfit | None:
        """What does not fit in columns of N rows, by default as many as the first part has; None if all do."""
        number: Any = "N" if rows is None else rows  # for errors: as many as the first part has
        for path, shape, whole in self._parts:
            try:
                column = at(columns, path)
                found = column.shape
                if rows is None:
                    rows = found[0]
                kind = getattr(column.dtype, "kind", "")  # dtypes of PyTorch have none
                fits = found[0] == rows and found[1:] == shape
                fits = fits and (kind in _WHOLE if whole and kind else kind not in NON_NUMERIC_KINDS)
            except _MISFIT:
                fits = False
            if not fits:
                return self._described(columns, path, (number, *shape), whole)
            number = rows
        return None

    def rows_of(self, columns: trees.Tree) -> int:
        """N of columns that fit; they may have further keys."""
        return len(at(columns, self._parts[0][0])) if self._parts else 0

    def _described(self, columns: trees.Tree, path: Path, shape: tuple[int | str, ...], whole: bool) -> Misfit:
        leaf, of_kind = dict(leaves(self._space))[path], False
        try:
            got: Any = at(columns, path)
        except _MISFIT:
            got = f"no such part in {type(columns).__name__}"
        if isinstance(got, Mapping):
            got = f"a dict with the keys {list(got)}"
        elif hasattr(got, "dtype"):
            got, of_kind = f"{got.dtype}{list(got.shape)}", tuple(got.shape) == shape
        return Misfit(path, leaf, got, shape, whole, of_kind)
