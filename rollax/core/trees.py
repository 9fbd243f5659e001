"""Pytrees of NumPy arrays without JAX: a tree is an array, or a dict, tuple or list of trees.

Columns of Dict and Tuple observations are trees. All arrays of a tree have the same leading length, the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Tree = Any  # an array, or a dict, tuple or list of trees, which Python's types cannot express


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Returns the tree of `function(leaf, *corresponding leaves of the other trees)`."""
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in rest)) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, *values) for values in zip(tree, *rest, strict=True))
    return function(tree, *rest)


def leaves(tree: Tree) -> Iterator[Any]:
    """Yields the leaves, in the order of the keys."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def length(tree: Tree) -> int:
    """Returns the number of rows; 0 for a tree without leaves (an empty Dict)."""
    if isinstance(tree, np.ndarray):
        return len(tree)
    return next((len(leaf) for leaf in leaves(tree)), 0)


def index(tree: Tree, rows: Any) -> Tree:
    """Returns the rows at an index array, mask or slice (slices are views)."""
    if isinstance(tree, np.ndarray):
        if isinstance(rows, np.ndarray) and rows.dtype != np.bool_:
            return tree.take(rows, axis=0)  # ten times as fast as tree[rows] for narrow rows
        return tree[rows]
    return tree_map(lambda leaf: index(np.asarray(leaf), rows), tree)


def concat(trees: Sequence[Tree]) -> Tree:
    """Returns the rows of all trees, concatenated; a single tree is returned itself."""
    if len(trees) == 1:
        return trees[0]
    return tree_map(lambda *parts: np.concatenate(parts), *trees)


def stack(trees: Sequence[Tree]) -> Tree:
    """Returns trees of equal structure and shapes, stacked along a new leading axis."""
    return tree_map(lambda *parts: np.stack(parts), *trees)


def rows(columns: Tree) -> list[Any]:
    """Returns a list of the rows, each with the structure of the tree."""
    return list(columns) if isinstance(columns, np.ndarray) else [index(columns, i) for i in range(length(columns))]


def unstack(columns: Tree) -> list[Any]:
    """Returns single actions from columns: Python ints for integers, arrays for other leaves, in dicts and tuples."""
    if isinstance(columns, dict):
        parts = [unstack(value) for value in columns.values()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*parts, strict=True)]
    if isinstance(columns, tuple | list):
        return list(zip(*(unstack(value) for value in columns), strict=True))
    if columns.ndim == 1 and columns.dtype.kind in "iu":
        return columns.tolist()
    if columns.ndim == 1:
        return [np.asarray(value) for value in columns]  # an action of a Box with shape () is an array
    return list(columns)


def copied(tree: Tree) -> Tree:
    """Returns the tree with a writable copy of each NumPy array; other leaves, such as ints, are kept."""
    if isinstance(tree, np.ndarray):
        return np.array(tree)
    return tree_map(lambda leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def empty_like(tree: Tree, rows: int) -> Tree:
    """Returns uninitialized columns of `rows` rows with the row shapes and dtypes of `tree`."""
    return tree_map(lambda leaf: np.empty((rows, *leaf.shape[1:]), leaf.dtype), tree)


def zeros_like(tree: Tree, rows: int) -> Tree:
    """Returns columns like `empty_like`, filled with 0, or with None in arrays of objects."""

    def zeros(leaf: Any) -> np.ndarray:
        shape = (rows, *leaf.shape[1:])
        return np.full(shape, None) if leaf.dtype == object else np.zeros(shape, leaf.dtype)

    return tree_map(zeros, tree)


def copy_into(target: Tree, start: int, source: Tree) -> None:
    """Writes the rows of `source` into `target`, starting at row `start`."""
    if isinstance(target, np.ndarray):
        target[start : start + len(source)] = source
        return
    tree_map(lambda to, rows: copy_into(to, start, rows), target, source)


def put(target: Tree, rows: Any, source: Tree) -> None:
    """Writes the rows of `source`, or one value for all, to the rows of `target` at an index array, mask or slice."""
    if isinstance(target, np.ndarray):
        target[rows] = source
        return
    tree_map(lambda to, values: put(to, rows, values), target, source)


def pad(tree: Tree, rows: int) -> Tree:
    """Returns the tree with rows of zeros appended up to `rows` rows; arrays that have `rows` rows are not copied."""

    def padded(leaf: np.ndarray) -> np.ndarray:
        if len(leaf) == rows:
            return leaf
        out = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
        out[: len(leaf)] = leaf
        return out

    return tree_map(padded, tree)


def namespace(array: Any) -> Any:
    """Returns the library of an array, `numpy` or `jax.numpy`, for code that is written for both."""
    return array.__array_namespace__()
