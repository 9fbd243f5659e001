"""Gymnasium spaces: checks, and columns (many values as arrays).

Columns of a space: for Box, MultiBinary and MultiDiscrete an array [N, *shape]; for Discrete an array [N] of integers;
for Dict and Tuple a dict or tuple of columns. The arrays have the dtypes of the space.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core import trees
from rollax.errors import SpaceError

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, or a non-empty Dict or Tuple of those"

DTYPES = frozenset(["bool", "float16", "float32", "float64", *(f"{s}int{8 << n}" for s in ("", "u") for n in range(4))])
"""The names of the types of numbers that spaces may have."""

ACTION_MASK = "action_mask"
"""The key of the action mask in a Dict observation."""

EMBEDDINGS = "avail_actions"
"""The key of embeddings of the available actions in a Dict observation: a padded Box [slots, E], one row per action."""

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""The keys of goals in a Dict observation."""

NOT_FEATURES = frozenset({ACTION_MASK, EMBEDDINGS})
"""The keys of a Dict observation that describe the available actions."""

Path = tuple[Any, ...]
"""The keys of Dicts and positions in Tuples that lead to a part of a nested space."""

_LEAVES = frozenset({spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary})


def walk(
    leaf: Callable[..., Any],
    space: spaces.Space,
    *trees: Any,
    part: Callable[[Any, Any], Any] = getitem,
    enter: Callable[..., None] | None = None,
    path: Path = (),
) -> trees.Tree:
    """Returns a tree with the structure of a nested space, whose leaves are `leaf(space, path, *parts)`.

    Args:
        leaf: called for every part of the space that is neither a Dict nor a Tuple.
        trees: trees with the structure of the space; `leaf` gets the corresponding part of each.
        part: `part(tree, key)` returns the part of a tree.
        enter: called with the same arguments for every Dict and Tuple, to refuse a tree of another structure.
    """
    if type(space) in _LEAVES:  # faster than the tests below
        return leaf(space, path, *trees)
    if isinstance(space, spaces.Dict):
        if enter is not None:
            enter(space, path, *trees)
        return {
            key: walk(leaf, inner, *(part(tree, key) for tree in trees), part=part, enter=enter, path=(*path, key))
            for key, inner in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if enter is not None:
            enter(space, path, *trees)
        return tuple(
            walk(leaf, inner, *(part(tree, i) for tree in trees), part=part, enter=enter, path=(*path, i))
            for i, inner in enumerate(space.spaces)
        )
    return leaf(space, path, *trees)


def leaves(space: spaces.Space) -> list[tuple[Path, spaces.Space]]:
    """Returns `(path, leaf)` for each leaf of a nested space, in order."""
    found: list[tuple[Path, spaces.Space]] = []
    walk(lambda leaf, path: found.append((path, leaf)), space)
    return found


def at(tree: trees.Tree, path: Path) -> trees.Tree:
    for key in path:
        tree = tree[key]
    return tree


def of_each(values: Sequence[Any], key: Any) -> list[Any]:
    """Returns the part of each value: the argument `part` of `walk` for lists of values."""
    return [value[key] for value in values]


def path_text(path: Path) -> str:
    """Returns a path as text for an error message: `, key 'position', element 0`."""
    return "".join(f", {'element' if isinstance(key, int) else 'key'} {key!r}" for key in path)


def check_space(space: Any, where: str) -> None:
    """Raises SpaceError unless `space` is a supported Gymnasium space, not empty, with low <= high in each Box."""
    walk(
        lambda leaf, path: _check_leaf(leaf, where + path_text(path)),
        space,
        enter=lambda outer, path: _check_outer(outer, where + path_text(path)),
    )


def _check_outer(space: spaces.Dict | spaces.Tuple, where: str) -> None:
    _refuse_empty(len(space.spaces), space, where)
    kinds = {type(key).__name__ for key in space.spaces} if isinstance(space, spaces.Dict) else set()
    if len(kinds) > 1:
        what = "The keys of a Dict space have different types and cannot be sorted."
        got = f"keys {list(space.spaces)}, of {sorted(kinds)}"
        raise SpaceError(what, where, got, expected="keys of one type, such as str", fix="use strings for all keys")


_CALLS = {Mapping: "Dict({...})", list | tuple: "Tuple([...])", int | np.integer: "Discrete(n)"}
"""Values that are given in place of a space -> the call that makes the space."""


def _check_leaf(space: Any, where: str) -> None:
    if not isinstance(space, spaces.Space):
        fix = "set it in the env's __init__, or in the config"
        if type(space).__module__.startswith("gym."):
            fix = "import the space from gymnasium.spaces"
        elif inspect.ismethod(space):
            fix = f"make {space.__name__} an attribute, or write @property above the method"
        elif made := next((call for kind, call in _CALLS.items() if isinstance(space, kind)), None):
            fix = f"write gymnasium.spaces.{made}"
        raise SpaceError("This is not a Gymnasium space.", where=where, got=space, expected=SUPPORTED, fix=fix)
    if isinstance(space, spaces.Box):
        _check_box(space, where)
    elif isinstance(space, spaces.Discrete):
        _refuse_empty(int(space.n), space, where)
    elif isinstance(space, spaces.MultiDiscrete):
        _refuse_empty(int(np.min(space.nvec, initial=1)) * space.nvec.size, space, where)
    elif isinstance(space, spaces.MultiBinary):
        _refuse_empty(int(np.prod(space.shape)), space, where)
    else:
        raise SpaceError("This kind of space is not supported.", where, space).expected(
            SUPPORTED, "wrap the env so that it has a supported space"
        )
    _check_dtype(space, where)


def _check_dtype(space: spaces.Space, where: str) -> None:
    dtype = space.dtype
    if dtype is not None and not (dtype.isnative and dtype.name in DTYPES):
        order = "" if dtype.isnative else ", in the byte order of another machine"
        raise SpaceError("Policies cannot read this type of numbers.", where, f"dtype {dtype.str}{order}").expected(
            f"one of {', '.join(sorted(DTYPES))}, in the byte order of this machine",
            "create the space with dtype=np.float32 or such, and convert observations: array.astype(space.dtype)",
        )


def _refuse_empty(size: int, space: spaces.Space, where: str) -> None:
    if size <= 0:
        raise SpaceError("The space has no elements.", where, space).expected(
            "at least one element", "correct the sizes of the space"
        )


def _check_box(space: spaces.Box, where: str) -> None:
    _refuse_empty(int(np.prod(space.shape)), space, where)
    if space.low.shape != space.shape or space.high.shape != space.shape:
        got = f"shape {space.shape}, low {space.low.shape}, high {space.high.shape}"
        fix = "create a new Box instead of changing its attributes"
        raise SpaceError("The bounds of a Box do not have its shape.", where, got).expected("three equal shapes", fix)
    crossed = ~(space.low <= space.high)
    if crossed.any():
        at = tuple(int(i) for i in np.argwhere(crossed)[0])
        raise SpaceError(
            "A bound of a Box has low > high.", f"{where}, element {at}", f"low {space.low[at]}, high {space.high[at]}"
        ).expected("low <= high", "swap the bounds")


def stack(space: spaces.Space, values: Sequence[Any]) -> trees.Tree:
    """Returns columns from single values, in the dtypes of the space; shapes and ranges are not checked.

    Raises ValueError for a ragged list, or for numbers that the dtype cannot store: fractions as integers, 300 as
    uint8, 1e300 as float32.
    """
    return walk(lambda leaf, path, parts: in_dtype(leaf, parts), space, values, part=of_each)


def in_dtype(space: spaces.Space, values: Any) -> np.ndarray:
    """Returns the values of a leaf space as an array of its dtype; raises ValueError as described in `stack`."""
    if space.dtype is None or space.dtype.kind == "f":
        try:
            with np.errstate(over="raise"):
                return np.array(values, dtype=space.dtype)
        except FloatingPointError as error:
            raise ValueError(f"{space} of dtype {space.dtype} cannot represent these numbers") from error
    given = np.array(values)
    with np.errstate(invalid="ignore"):  # NaN is refused below
        columns = given.astype(space.dtype, copy=False)
    if not np.can_cast(given.dtype, space.dtype) and not np.array_equal(columns, given):
        raise ValueError(f"{space} of dtype {space.dtype} cannot represent these {given.dtype} values")
    return columns


def in_dtypes(space: spaces.Space, columns: trees.Tree) -> trees.Tree:
    """Returns the columns in the dtypes of the space; columns with the right dtype are returned unchanged."""
    return walk(lambda leaf, path, column: np.asarray(column).astype(leaf.dtype, copy=False), space, columns)


def zeros(space: spaces.Space, rows: int) -> trees.Tree:
    return walk(lambda leaf, path: np.zeros((rows, *(leaf.shape or ())), dtype=leaf.dtype), space)


def bounds(space: spaces.Space) -> tuple[Any, Any]:
    """Returns the lowest and highest value of each element of a Box, Discrete, MultiDiscrete or MultiBinary."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def is_parametric(observation_space: spaces.Space) -> bool:
    """Whether observations contain embeddings of the available actions."""
    return isinstance(observation_space, spaces.Dict) and EMBEDDINGS in observation_space.spaces


def choices(space: spaces.Space) -> list[int]:
    """Returns the number of choices of each discrete action of a space, in the order of an action mask."""
    counts = []
    for _, leaf in leaves(space):
        if isinstance(leaf, spaces.Discrete):
            counts.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            counts += leaf.nvec.ravel().tolist()
    return counts


def have_choices(mask: NDArray, starts: NDArray) -> NDArray[np.bool_]:
    """[N, discrete actions] whether masks [N, choices] allow a choice; the entries of each action begin at `starts`."""
    return np.logical_or.reduceat(mask > 0, starts, axis=1)


def channels_come_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image of rank 3 are its first axis, not its last axis.

    If the first two axes have equal lengths, the channels are the last axis; else, if the last two axes have equal
    lengths, the first axis; else the shorter one of the first and the last axis, or the last if both are equal.
    """
    first, second, last = shape
    return first != second and (second == last or first < last)


def same_space(a: spaces.Space, b: spaces.Space) -> bool:
    """Returns whether two spaces are equal for a policy; Box bounds may differ by about 1e-5 of their size."""
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return np.allclose(a.low, b.low, equal_nan=True) and np.allclose(a.high, b.high, equal_nan=True)
    if isinstance(a, spaces.Dict) and isinstance(b, spaces.Dict):
        return a.spaces.keys() == b.spaces.keys() and all(same_space(a[k], b[k]) for k in a.spaces)
    if isinstance(a, spaces.Tuple) and isinstance(b, spaces.Tuple):
        return len(a.spaces) == len(b.spaces) and all(
            same_space(*pair) for pair in zip(a.spaces, b.spaces, strict=True)
        )
    if isinstance(a, spaces.MultiBinary) and isinstance(b, spaces.MultiBinary):
        return a.shape == b.shape  # Gymnasium distinguishes MultiBinary(5) and MultiBinary([5])
    return a == b


def same_action_space(a: spaces.Space, b: spaces.Space) -> bool:
    """Whether two action spaces are equal for a policy and have their parts in the same order.

    The outputs of a model follow this order.
    """
    return same_space(a, b) and [path for path, _ in leaves(a)] == [path for path, _ in leaves(b)]


def space_text(space: Any) -> str:
    """Returns a short description of a space without its bounds: `Box((4,), float32)`."""
    if isinstance(space, spaces.Box):
        return f"Box({space.shape}, {space.dtype})"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}={space_text(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(space_text, space.spaces))})"
    return " ".join(repr(space).split())
