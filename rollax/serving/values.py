"""Values of spaces in messages: requests have plain values and packed arrays, responses have plain values.

A plain value consists of JSON types: numbers, nested lists, dicts by key; a tuple is a list. A packed array is a dict
{"dtype": "<f4", "shape": [2, 3], "data": bytes}, in msgpack only; `data` is in C order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core.numbers import all_finite, numeric_array, sum_of_squares
from rollax.core.space_codec import Where
from rollax.core.spaces import Path, bounds, path_text
from rollax.core.trees import Tree, concat
from rollax.errors import InvalidRequestError

_SIZES = {"|b": "1", "|i": "1", "|u": "1", "<i": "248", "<u": "248", "<f": "248"}
_DTYPES = frozenset(kind + size for kind, sizes in _SIZES.items() for size in sizes)
_MAX_AXES = 32
_NUMBERS = frozenset({int, float})
_PLAIN = frozenset({int, float, bool, str})
_STRINGS = frozenset({str})


class SpaceValues:
    """Converts transferred values to values of a space, many at once.

    Args:
        largest: the largest absolute value of a number, unless a bound of the space is higher; None: no limit.
        bounded: whether values outside the bounds of a Box are refused.
    """

    def __init__(self, space: Space, *, largest: float | None = None, bounded: bool = False) -> None:
        self._read = _reader(space, (), largest, bounded)

    def columns(self, values: Sequence[Any], where: Where) -> Tree:
        """Columns of N > 0 values in the dtypes of the space; InvalidRequestError for a value that is not in it."""
        try:
            return self._read(values, where)
        except InvalidRequestError:
            if len(values) == 1:
                raise
            # One by one, which finds the first wrong value, or succeeds if only the dtypes of the values differ.
            return concat([self._read([value], lambda _, row=row: where(row)) for row, value in enumerate(values)])


def _reader(space: Space, path: Path, largest: float | None, bounded: bool) -> Callable[[Sequence[Any], Where], Tree]:
    """A function that reads values of a space; made once, because walking a space is slower than reading numbers."""
    place = path_text(path)
    if isinstance(space, spaces.Dict):
        keys = space.spaces.keys()
        # Keys of JSON objects are strings.
        by_name = {str(key): (key, _reader(part, (*path, key), largest, bounded)) for key, part in space.spaces.items()}

        def named(value: Any, where: Where) -> dict[str, Any]:
            if isinstance(value, dict):
                if value.keys() == by_name.keys():
                    return value
                if value.keys() == keys:
                    return {str(key): part for key, part in value.items()}
            got = f"keys {sorted(map(str, value))}" if isinstance(value, dict) else _shown(value)
            raise _misfit("The keys of the value are not those of its space.", where(0) + place, got, sorted(by_name))

        def read_dicts(values: Sequence[Any], where: Where) -> Tree:
            rows = [named(value, where) for value in values]
            return {key: read([row[name] for row in rows], where) for name, (key, read) in by_name.items()}

        return read_dicts
    if isinstance(space, spaces.Tuple):
        readers = [_reader(part, (*path, i), largest, bounded) for i, part in enumerate(space.spaces)]

        def read_tuples(values: Sequence[Any], where: Where) -> Tree:
            for value in values:
                if not isinstance(value, list | tuple) or len(value) != len(readers):
                    got = f"{len(value)} parts" if isinstance(value, list | tuple) else _shown(value)
                    what = "The length of the value is not that of its space."
                    raise _misfit(what, where(0) + place, got, f"a list of {len(readers)} parts")
            return tuple(read([value[i] for value in values], where) for i, read in enumerate(readers))

        return read_tuples
    return _Leaf(space, place, largest, bounded).columns


def _misfit(what: str, where: str, got: Any, expected: Any) -> InvalidRequestError:
    return InvalidRequestError(what, where, got).expected(expected, "send values of the space that GET /v1 shows")


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


def unpack(packed: Any, where: str = "packed array") -> np.ndarray:
    """The read-only array of a packed array, checked before memory is allocated; InvalidRequestError if malformed."""
    expected = "{dtype: one of " + ", ".join(sorted(_DTYPES)) + "; shape: a list of counts; data: bytes}"
    if not isinstance(packed, dict) or packed.keys() != {"dtype", "shape", "data"}:
        raise _misfit("The packed array has the wrong keys.", where, _shown(packed), expected)
    dtype, shape, data = packed["dtype"], packed["shape"], packed["data"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _misfit("The packed array has an unknown dtype.", where, _shown(dtype), expected)
    counts = isinstance(shape, list | tuple) and len(shape) <= _MAX_AXES
    if not counts or any(type(n) is not int or n < 0 for n in shape):
        raise _misfit("The shape of the packed array is malformed.", where, _shown(shape), expected)
    if not isinstance(data, bytes):
        raise _misfit("The data of the packed array is not bytes.", where, _shown(data), expected)
    size = math.prod(shape) * int(dtype[2:])
    if len(data) != size:
        raise _misfit("The data of the packed array has the wrong size.", where, f"{len(data)} bytes", f"{size} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


class _Leaf:
    """Reads the values of a Box, Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, space: Space, place: str, largest: float | None, bounded: bool) -> None:
        assert space.dtype is not None
        self._space, self._place, self._dtype = space, place, space.dtype
        self._shape = tuple(space.shape or ())
        self._size = math.prod(self._shape)
        self._low, self._high = low, high = bounds(space)
        box = isinstance(space, spaces.Box)
        self._bounded = not box or (bounded and bool((np.isfinite(low) | np.isfinite(high)).any()))
        self._largest = None
        if largest is not None and box and self._dtype.kind == "f":
            finite = np.abs(np.concatenate([np.ravel(side) for side in (low, high)]).astype(np.float64))
            self._largest = max([largest, *finite[np.isfinite(finite)].tolist()])
        self._vector = len(self._shape) == 1 and self._dtype.str in ("<f4", "<f8") and not self._bounded
        self._most_squares = min(1e38, self._largest or math.inf) ** 2

    def columns(self, values: Sequence[Any], where: Where) -> np.ndarray:
        """[N, *shape] in the dtype of the space."""
        if type(values[0]) is dict:
            column = self._packed(values, where)
        elif self._vector and (column := self._vectors(values)) is not None:
            return column
        else:
            column = self._array(values, where)
        if column.shape[1:] != self._shape:
            raise self._misfit("The value has the wrong shape.", f"shape {column.shape[1:]}", where)
        if column.dtype != self._dtype:
            column = self._cast(column, where)
        if column.dtype.kind == "f":
            self._check_size(column, where)
        if self._bounded and ((column < self._low) | (column > self._high)).any():
            raise self._misfit("The value is out of bounds.", _shown(values[0]), where)
        return column

    def _array(self, values: Sequence[Any], where: Where) -> np.ndarray:
        """[N, ...] from nested lists of numbers."""
        try:
            column = numeric_array(values)
            if column.dtype.kind in "fiub":
                return column
            what = "The value does not consist of numbers."
        except OverflowError:
            what = f"A number cannot be represented in {self._dtype}."
        except TypeError:
            what = "The value does not consist of numbers."
        except ValueError:
            what = "The value has the wrong shape."
        raise self._misfit(what, _shown(values[0]), where)

    def _vectors(self, values: Sequence[Any]) -> np.ndarray | None:
        """[N, *shape] from lists of numbers, the common case; None for values that need further checks."""
        size = self._size
        for value in values:
            if type(value) is not list or len(value) != size or not _NUMBERS.issuperset(map(type, value)):
                return None
        try:
            column = np.array(values, np.float64)
        except OverflowError:  # an integer above all floats
            return None
        # With a smaller sum of squares, no number is NaN, too large, or infinite in float32.
        return column.astype(self._dtype) if sum_of_squares(column) < self._most_squares else None

    def _packed(self, values: Sequence[Any], where: Where) -> np.ndarray:
        """[N, *shape] from packed arrays; arrays of equal dtype are read at once."""
        dtype, shape = values[0].get("dtype"), list(self._shape)
        if isinstance(dtype, str) and dtype in _DTYPES:
            size = self._size * int(dtype[2:])
            for value in values:
                alike = type(value) is dict and len(value) == 3 and value.get("dtype") == dtype
                data = value.get("data") if alike and value.get("shape") == shape else None
                if type(data) is not bytes or len(data) != size:
                    break
            else:
                data = b"".join([value["data"] for value in values])
                return np.frombuffer(data, dtype).reshape(len(values), *self._shape)
        arrays = [unpack(value, where(0) + self._place) for value in values]
        if any(array.shape != self._shape for array in arrays):
            raise self._misfit("The value has the wrong shape.", f"shape {arrays[0].shape}", where)
        return np.stack(arrays)

    def _cast(self, column: np.ndarray, where: Where) -> np.ndarray:
        with np.errstate(all="ignore"):
            cast = column.astype(self._dtype)
            if self._dtype.kind == "f" and all_finite(cast):
                return cast
            lost = (cast != column) if self._dtype.kind != "f" else np.isinf(cast) & np.isfinite(column)
        if lost.any():
            what = f"A number cannot be represented in {self._dtype}."
            raise self._misfit(what, _shown(column[lost].flat[0].item()), where)
        return cast

    def _check_size(self, column: np.ndarray, where: Where) -> None:
        if not all_finite(column):
            raise self._misfit("A number is not finite.", str(column[~np.isfinite(column)].flat[0]), where)
        if self._largest is not None and column.size and not np.abs(column).max() <= self._largest:
            got = str(column.flat[int(np.abs(column).argmax())].item())
            raise self._misfit("A number is too large.", got, where, f"at most {self._largest:g} in absolute value")

    def _misfit(self, what: str, got: str, where: Where, expected: Any = None) -> InvalidRequestError:
        return _misfit(what, where(0) + self._place, got, self._space if expected is None else expected)


def _shown(value: Any) -> str:
    """A value in an error message, without its whole content."""
    text = "" if isinstance(value, list | dict | bytes) and len(value) > 8 else repr(value)
    if 0 < len(text) <= 120:
        return text
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else text[:120]
