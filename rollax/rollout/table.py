"""`Table`: columns indexed by a small integer, such as a slot or the number of a sub-environment."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from rollax.core import trees

Index = np.ndarray | slice
"""Some rows of a table: an index array, or a slice, which costs less."""


class Table(dict[Hashable, Any]):
    """Name -> column. All columns grow together; a new row has the fill value of each column.

    Args:
        rows: the initial number of rows.
        fills: name -> fill, as for `add`.
    """

    def __init__(self, rows: int = 64, **fills: Any) -> None:
        super().__init__()
        self.rows = rows
        self._fills: dict[Hashable, trees.Tree] = {}
        for name, fill in fills.items():
            self.add(name, fill)

    def add(self, name: Hashable, fill: Any) -> None:
        """Adds a column; `fill` is the value of a new row: a number, an array, or a tree of arrays."""
        self._fills[name] = fill
        self[name] = self._filled(fill, self.rows)

    def clear_rows(self, name: Hashable, rows: Index) -> None:
        """Sets some rows of a column to its fill value."""
        trees.put(self[name], rows, self._fills[name])

    def make_room(self, rows: int) -> None:
        """Grows to this number of rows or more."""
        if rows > self.rows:
            grown = {name: self._filled(fill, 2 * rows) for name, fill in self._fills.items()}
            for name, column in grown.items():
                trees.copy_into(column, 0, trees.index(self[name], slice(self.rows)))
            self.update(grown)  # set before the number of rows, so that an interrupt in between loses nothing
            self.rows = 2 * rows

    @staticmethod
    def _filled(fill: trees.Tree, rows: int) -> trees.Tree:
        return trees.tree_map(lambda leaf: np.repeat(np.asarray(leaf)[None], rows, axis=0), fill)
