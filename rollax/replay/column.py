"""One column of a replay buffer: the arrays of a tree, one row per ring buffer slot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax import trees
from rollax.replay.frames import StackedFrames
from rollax.replay.links import Links


class Column:
    """Rows of a tree of arrays; there is no room for any before `allocate`.

    Args:
        template: a column of such rows; its values are not used.
    """

    def __init__(self, template: trees.Tree) -> None:
        self.template = trees.tree_map(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), template)
        self.arrays = [np.empty((0, *shape), dtype) for shape, dtype in self._kept_rows()]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes per slot."""
        return sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in self.arrays)

    def allocate(self, size: int) -> None:
        """Makes room for `size` rows."""
        self.arrays = [np.empty((size, *array.shape[1:]), array.dtype) for array in self.arrays]

    def differs(self, column: trees.Tree) -> str | None:
        """The row layout of another column where it differs from this one; else None."""
        found = described(column)
        return None if found == described(self.template) else str(found)

    def put(self, slots: NDArray[np.int64], column: trees.Tree) -> None:
        """Writes the K rows of a column to K slots."""
        for array, leaf in zip(self.arrays, self._leaves(column), strict=True):
            array[slots] = leaf

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Writes zeros to K slots."""
        for array in self.arrays:
            array[slots] = 0

    def read(self, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of the rows at K slots."""
        return self._tree([np.take(array, slots, axis=0) for array in self.arrays])

    def _kept_rows(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of a stored row, for each array."""
        return [(leaf.shape[1:], leaf.dtype) for leaf in trees.leaves(self.template)]

    def _leaves(self, column: trees.Tree) -> list[NDArray]:
        """The arrays of a column, in the order of the first one's keys."""
        return list(trees.leaves(trees.tree_map(lambda _, leaf: leaf, self.template, column)))

    def _tree(self, leaves: list[NDArray]) -> trees.Tree:
        following = iter(leaves)
        return trees.tree_map(lambda _: next(following), self.template)


class StackedColumn(Column):
    """Observations that contain a stack of images, each image stored once.

    Args:
        template: as for `Column`.
        frames: where the stacks are, and how they are stacked.
        links: the links of the slots, along which stacks are assembled.
    Raises:
        ConfigError: there are no such stacks.
    """

    def __init__(self, template: trees.Tree, frames: StackedFrames, links: Links) -> None:
        self._frames, self._links = frames, links
        stacks = frames.array(template)
        self._position = next(i for i, leaf in enumerate(trees.leaves(template)) if leaf is stacks)
        super().__init__(template)

    def put_entries(
        self, slots: NDArray[np.int64], column: trees.Tree, images: NDArray[np.int64], fresh: NDArray[np.bool_]
    ) -> None:
        """Writes M rows to M slots, with [M] `images` more in the slots before them; stacks only where `fresh`."""
        for position, (array, leaf) in enumerate(zip(self.arrays, self._leaves(column), strict=True)):
            if position == self._position:
                self._frames.put(array, self._links, self._frames.stacks(leaf)[fresh], slots[fresh], images[fresh])
            else:
                array[slots] = leaf

    def read(self, slots: NDArray[np.integer]) -> trees.Tree:
        """A copy of the rows at K slots, stacks as they were added."""
        leaves = [
            self._frames.read(array, self._links, slots) if i == self._position else np.take(array, slots, axis=0)
            for i, array in enumerate(self.arrays)
        ]
        return self._tree(leaves)

    def _kept_rows(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        rows = super()._kept_rows()
        stacks = self._frames.stacks(self._frames.array(self.template))
        rows[self._position] = stacks.shape[2:], stacks.dtype
        return rows


def described(tree: trees.Tree) -> Any:
    """Structure, row shapes and dtypes of a column, as JSON can hold them."""
    if isinstance(tree, dict):
        return {"dict": {key: described(part) for key, part in tree.items()}}
    if isinstance(tree, tuple | list):
        return {type(tree).__name__: [described(part) for part in tree]}
    return {"shape": list(tree.shape[1:]), "dtype": tree.dtype.str}


def from_description(description: Any) -> trees.Tree:
    """An empty column with the layout that `described` returned."""
    if "dict" in description:
        return {key: from_description(part) for key, part in description["dict"].items()}
    for kind in (tuple, list):
        if kind.__name__ in description:
            return kind(from_description(part) for part in description[kind.__name__])
    dtype = np.dtype(description["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"no numbers: {dtype}")
    return np.empty((0, *description["shape"]), dtype)
