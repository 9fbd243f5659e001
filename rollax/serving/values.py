"""Values of spaces on the wire: plain values and packed arrays in, plain values out.

A plain value consists of JSON types: numbers, nested lists, dicts by key; a tuple is a list. A packed array is a dict
{"dtype": "<f4", "shape": [2, 3], "data": bytes}, in msgpack only; `data` is in C order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core.numbers import all_finite, numeric_array
from rollax.core.spaces import Path, bounds, path_text
from rollax.core.trees import Tree, concat
from rollax.errors import RequestError

Where = Callable[[int], str]
"""Row -> the location of a value in an error message."""

_PACKED = frozenset({"dtype", "shape", "data"})
_DTYPES = frozenset(
    [
        "|b1",
        "|i1",
        "|u1",
        *(f"<{kind}{size}" for kind, sizes in (("i", "248"), ("u", "248"), ("f", "248")) for size in sizes),
    ]
)
_MAX_AXES = 32
_NUMBERS = frozenset({int, float})


class SpaceValues:
    """Converts transferred values to values of a space, many at once.

    Args:
        space: the space.
        largest: the largest absolute value of a number, unless a bound of the space is higher; None: no limit.
        bounded: whether values outside the bounds of a Box are refused.
    """

    def __init__(self, space: Space, *, largest: float | None = None, bounded: bool = False) -> None:
        self._largest, self._bounded = largest, bounded
        self._root = _node(space, (), self)

    def columns(self, values: Sequence[Any], where: Where) -> Tree:
        """Columns of N values in the dtypes of the space, at least one.

        Raises:
            RequestError: a value that is not in the space; `where(row)` is its location.
        """
        try:
            return self._root.columns(values)
        except _MisfitError as error:
            if len(values) == 1:
                raise error.located(where(0)) from None
        # Reads the values one by one to find the first wrong one.
        rows = []
        for row, value in enumerate(values):
            try:
                rows.append(self._root.columns([value]))
            except _MisfitError as error:
                raise error.located(where(row)) from None
        return concat(rows)


_PLAIN = frozenset({int, float, bool, str})
_STRINGS = frozenset({str})


def plain(value: Any) -> Any:
    """The plain value of an action, or of any tree of arrays and numbers."""
    if type(value) in _PLAIN:  # the common case
        return value
    if hasattr(value, "tolist"):  # an array, or a NumPy number
        return value.tolist()
    if isinstance(value, Mapping):
        if _PLAIN.issuperset(map(type, value.values())) and _STRINGS.issuperset(map(type, value)):
            return value
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value


def unpack(packed: Mapping[str, Any], where: str = "packed array") -> np.ndarray:
    """The array of a packed array, read-only, checked before memory is allocated.

    Raises:
        RequestError: a wrong key, dtype or shape, or another number of bytes; `where` is its location.
    """
    try:
        return _unpacked(packed)
    except _MisfitError as error:
        raise error.located(where) from None


class _MisfitError(Exception):
    """A value is not in its space; `located` returns the error of the request."""

    def __init__(self, what: str, path: Path, got: Any, expected: Any) -> None:
        super().__init__(what)
        self._what, self._path, self._got, self._expected = what, path, got, expected

    def located(self, where: str) -> RequestError:
        return RequestError(
            self._what,
            status=422,
            where=where + path_text(self._path),
            got=self._got,
            expected=self._expected,
            fix="send values of the space that GET /v1 shows",
        )


def _node(space: Space, path: Path, owner: SpaceValues) -> Any:
    if isinstance(space, spaces.Dict):
        return _DictNode(space, path, owner)
    if isinstance(space, spaces.Tuple):
        return _TupleNode(space, path, owner)
    return _Leaf(space, path, owner._largest, owner._bounded)


class _DictNode:
    def __init__(self, space: spaces.Dict, path: Path, owner: SpaceValues) -> None:
        self._path, self._keys = path, space.spaces.keys()
        # Keys of JSON objects are strings.
        self._parts = {str(key): (key, _node(part, (*path, key), owner)) for key, part in space.spaces.items()}

    def columns(self, values: Sequence[Any]) -> dict[Any, Tree]:
        named = [self._named(value) for value in values]
        return {key: node.columns([value[name] for value in named]) for name, (key, node) in self._parts.items()}

    def _named(self, value: Any) -> dict[str, Any]:
        """The parts of a value by name; keys in msgpack can have other types than strings."""
        if isinstance(value, dict):
            if value.keys() == self._parts.keys():
                return value
            if value.keys() == self._keys:
                return {str(key): part for key, part in value.items()}
        got = f"keys {sorted(map(str, value))}" if isinstance(value, dict) else _shown(value)
        raise _MisfitError("The keys of the value are not those of its space.", self._path, got, sorted(self._parts))


class _TupleNode:
    def __init__(self, space: spaces.Tuple, path: Path, owner: SpaceValues) -> None:
        self._path = path
        self._parts = [_node(part, (*path, i), owner) for i, part in enumerate(space.spaces)]

    def columns(self, values: Sequence[Any]) -> tuple[Tree, ...]:
        for value in values:
            if not isinstance(value, list | tuple) or len(value) != len(self._parts):
                got = f"{len(value)} parts" if isinstance(value, list | tuple) else _shown(value)
                expected = f"a list of {len(self._parts)} parts"
                raise _MisfitError("The length of the value is not that of its space.", self._path, got, expected)
        return tuple(node.columns([value[i] for value in values]) for i, node in enumerate(self._parts))


class _Leaf:
    """Reads the values of a Box, Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, space: Space, path: Path, largest: float | None, bounded: bool) -> None:
        assert space.dtype is not None
        self._space, self._path, self._dtype = space, path, space.dtype
        self._shape = tuple(space.shape or ())
        self._size = math.prod(self._shape)
        self._packed_shape = list(self._shape)
        low, high = bounds(space)
        box = isinstance(space, spaces.Box)
        self._low, self._high = low, high
        self._bounded = not box or (bounded and bool((np.isfinite(low) | np.isfinite(high)).any()))
        self._largest = None
        if largest is not None and box and self._dtype.kind == "f":
            finite = np.abs(np.concatenate([np.ravel(side) for side in (low, high)]).astype(np.float64))
            self._largest = max([largest, *finite[np.isfinite(finite)].tolist()])
        self._vector = len(self._shape) == 1 and self._dtype.str in ("<f4", "<f8") and not self._bounded
        self._most_squares = min(1e38, self._largest or math.inf) ** 2

    def columns(self, values: Sequence[Any]) -> np.ndarray:
        """[N, *shape] in the dtype of the space."""
        if type(values[0]) is dict:
            column = self._packed(values)
        elif self._vector and (column := self._vectors(values)) is not None:
            return column
        else:
            try:
                column = numeric_array(values)
            except OverflowError:
                raise self._misfit(f"A number cannot be represented in {self._dtype}.", values[0]) from None
            except TypeError:
                raise self._misfit("The value does not consist of numbers.", values[0]) from None
            except ValueError:
                raise self._misfit("The value has the wrong shape.", values[0]) from None
            if column.dtype.kind not in "fiub":
                raise self._misfit("The value does not consist of numbers.", values[0])
        if column.shape[1:] != self._shape:
            raise self._misfit("The value has the wrong shape.", f"shape {column.shape[1:]}")
        if column.dtype != self._dtype:
            column = self._cast(column)
        if column.dtype.kind == "f":
            self._check_finite(column)
        if self._bounded and ((column < self._low) | (column > self._high)).any():
            raise self._misfit("The value is out of bounds.", values[0])
        return column

    def _vectors(self, values: Sequence[Any]) -> np.ndarray | None:
        """[N, *shape] from lists of numbers, the common case; None for all that needs a closer look."""
        size = self._size
        for value in values:
            if type(value) is not list or len(value) != size or not _NUMBERS.issuperset(map(type, value)):
                return None
        try:
            column = np.array(values, np.float64)
        except OverflowError:  # an integer above all floats
            return None
        flat = column.ravel()
        # With a smaller sum of squares, no number is NaN, too large, or infinite in float32.
        return column.astype(self._dtype) if np.vdot(flat, flat) < self._most_squares else None

    def _packed(self, values: Sequence[Any]) -> np.ndarray:
        """[N, *shape] from packed arrays; arrays of equal dtype are read at once."""
        first = values[0]
        dtype = first.get("dtype")
        if isinstance(dtype, str) and dtype in _DTYPES:
            size = self._size * int(dtype[2:])
            alike = True
            for value in values:
                alike = (
                    alike
                    and type(value) is dict
                    and len(value) == 3
                    and value.get("dtype") == dtype
                    and value.get("shape") == self._packed_shape
                    and type(data := value.get("data")) is bytes
                    and len(data) == size
                )
            if alike:
                data = b"".join([value["data"] for value in values])
                return np.frombuffer(data, dtype).reshape(len(values), *self._shape)
        arrays = [_unpacked(value, self._path) for value in values]
        if any(array.shape != self._shape for array in arrays):
            raise self._misfit("The value has the wrong shape.", f"shape {arrays[0].shape}")
        return np.stack(arrays)

    def _cast(self, column: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            cast = column.astype(self._dtype)
            if self._dtype.kind == "f" and all_finite(cast):
                return cast
            lost = (cast != column) if self._dtype.kind != "f" else np.isinf(cast) & np.isfinite(column)
        if lost.any():
            raise self._misfit(f"A number cannot be represented in {self._dtype}.", column[lost].flat[0].item())
        return cast

    def _check_finite(self, column: np.ndarray) -> None:
        if not all_finite(column):
            raise self._misfit("A number is not finite.", str(column[~np.isfinite(column)].flat[0]))
        if self._largest is not None and column.size and not np.abs(column).max() <= self._largest:
            raise self._misfit(
                "A number is too large.",
                column.flat[int(np.abs(column).argmax())].item(),
                f"at most {self._largest:g} in absolute value",
            )

    def _misfit(self, what: str, got: Any, expected: Any = None) -> _MisfitError:
        shown = got if isinstance(got, str) and got.startswith("shape") else _shown(got)
        return _MisfitError(what, self._path, shown, self._space if expected is None else expected)


def _unpacked(packed: Any, path: Path = ()) -> np.ndarray:
    expected = "{dtype: one of " + ", ".join(sorted(_DTYPES)) + "; shape: a list of counts; data: bytes}"
    if not isinstance(packed, dict) or packed.keys() != _PACKED:
        raise _MisfitError("The packed array has the wrong keys.", path, _shown(packed), expected)
    dtype, shape, data = packed["dtype"], packed["shape"], packed["data"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _MisfitError("The packed array has an unknown dtype.", path, _shown(dtype), expected)
    counts = isinstance(shape, list | tuple) and len(shape) <= _MAX_AXES
    if not counts or any(type(n) is not int or n < 0 for n in shape):
        raise _MisfitError("The shape of the packed array is malformed.", path, _shown(shape), expected)
    if not isinstance(data, bytes):
        raise _MisfitError("The data of the packed array is not bytes.", path, _shown(data), expected)
    size = math.prod(shape) * int(dtype[2:])
    if len(data) != size:
        raise _MisfitError(
            "The data of the packed array has the wrong size.", path, f"{len(data)} bytes", f"{size} bytes"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _shown(value: Any) -> str:
    """A value in an error message, without its whole content."""
    text = repr(value) if not isinstance(value, list | dict | bytes) or len(value) <= 8 else ""
    return (
        text
        if 0 < len(text) <= 120
        else f"{type(value).__name__} of {len(value)}"
        if hasattr(value, "__len__")
        else text[:120]
    )
