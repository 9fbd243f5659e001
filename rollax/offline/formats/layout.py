"""The Parquet layout of recorded trajectories: the arrays in the columns of a table.

A trajectory of T steps is T + 1 rows. Row t has the observation, its action, reward and flags. In the last row
`is_last` is true, and only the ids, `obs`, `infos` and `reward_left_out` have values. `reward_left_out` is null, or the
reward of a further step that is left out because the observation after it is unknown. `continues` is true in the first
row of a trajectory whose beginning is missing. Each part of a nested space has its own column, such as `obs/position`.
Rows of numbers are lists; rows of more than 256 numbers, such as images, are bytes. If columns of policies differ, each
policy has its own, such as `walker:obs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from rollax.core import trees
from rollax.core.space_json import key_from_json, key_to_json
from rollax.core.storage import parsed_json
from rollax.core.trees import Tree
from rollax.errors import DatasetError

IDS = ("episode_id", "agent_id", "policy_id")
IS_LAST, TERMINATED, TRUNCATED = "is_last", "terminated", "truncated"
CONTINUES, REWARD_LEFT_OUT = "continues", "reward_left_out"
"""Columns that files of older versions do not have."""
RESERVED = frozenset({*IDS, IS_LAST, TERMINATED, TRUNCATED, CONTINUES, REWARD_LEFT_OUT})
"""The columns of every table, besides the columns with a trajectory's arrays."""
HEADER = b"rollax"
FORMAT_VERSION = 1
_MOST_NUMBERS_IN_A_LIST = 256
_BYTES_OF_OBJECT = 64
_KINDS = "biuf"


@dataclass(frozen=True)
class Leaf:
    """One column of a table.

    Args:
        column: name of the column.
        dtype: dtype of the array in NumPy's notation (`<f4`); "json" for JSON values.
        shape: shape of one row.
    """

    column: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def storage(self) -> Literal["scalar", "list", "bytes", "json"]:
        if self.dtype == "json":
            return "json"
        # Some versions of Arrow cannot read lists of two-byte floats.
        if self.size > _MOST_NUMBERS_IN_A_LIST or np.dtype(self.dtype).itemsize > 8 or self.dtype == "<f2":
            return "bytes"
        return "list" if self.shape else "scalar"

    def arrow_type(self) -> pa.DataType:
        match self.storage:
            case "json":
                return pa.string()
            case "bytes":
                return pa.binary(self.size * np.dtype(self.dtype).itemsize)
            case "list":
                return pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)))
        return pa.from_numpy_dtype(np.dtype(self.dtype))

    def to_arrow(self, values: np.ndarray, rows: np.ndarray) -> pa.Array:
        """A column of len(rows) rows, with the values where `rows` is true, and null elsewhere."""
        kind, missing = self.arrow_type(), ~rows
        if self.storage == "json":
            texts = np.full(len(rows), None, object)
            texts[rows] = [info_to_json(value) for value in values.tolist()]
            return pa.array(texts, kind)
        values = np.ascontiguousarray(values, np.dtype(self.dtype))
        if self.storage == "list":
            offsets = np.append(0, np.cumsum(rows)).astype(np.int32) * np.int32(self.size)
            return pa.ListArray.from_arrays(
                pa.array(offsets), pa.array(values.reshape(-1)), kind, mask=pa.array(missing)
            )
        full = values
        if missing.any():
            full = np.zeros((len(rows), *self.shape), values.dtype)
            full[rows] = values
        if self.storage == "scalar":
            return pa.array(full, kind, mask=missing)
        validity = pa.py_buffer(np.packbits(rows, bitorder="little").tobytes())
        return pa.Array.from_buffers(kind, len(rows), [validity, pa.py_buffer(full)])

    def from_arrow(self, column: pa.ChunkedArray) -> np.ndarray:
        """The values that are not null, [N, *shape]; ValueError if they do not match this leaf."""
        array = column.combine_chunks()
        if array.type != self.arrow_type():
            raise ValueError(f"a column of type {array.type} in place of {self.arrow_type()}")
        rows, dtype = len(array) - array.null_count, np.dtype(self.dtype if self.dtype != "json" else object)
        if self.storage == "json":
            values = np.empty(rows, object)
            values[:] = [parsed_json(text) for text in array.drop_null().to_pylist()]
            return values
        if self.storage == "list":
            flat = array.flatten()
            if flat.null_count or len(flat) != rows * self.size:
                raise ValueError(f"lists whose length is not {self.size}")
            return flat.to_numpy(zero_copy_only=False).reshape(rows, *self.shape)
        if self.storage == "scalar":
            return array.drop_null().to_numpy(zero_copy_only=False)
        present = array.drop_null()
        start = present.offset * self.size * dtype.itemsize
        return np.frombuffer(present.buffers()[1], dtype, rows * self.size, start).reshape(rows, *self.shape)


class Columns(dict[str, Any]):
    """The columns of one policy: column of `SampleBatch` -> tree of `Leaf`."""

    @classmethod
    def of(cls, columns: Mapping[str, Tree], where: str) -> Columns:
        """The columns for these arrays; DatasetError for arrays of objects, and for equal column names."""
        found = cls({name: _leaves_of(column, name, name, where) for name, column in columns.items()})
        taken = {*RESERVED}
        for leaf in found.leaves():
            if leaf.column in taken:
                names = ", ".join(sorted(RESERVED))
                raise DatasetError("The name of the column is reserved.", where, leaf.column).expected(
                    f"other names than {names}, each once",
                    "rename it; how the trajectory ended and its ids are arguments of RecordedTrajectory",
                )
            taken.add(leaf.column)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Columns:
        return cls({name: _tree_from_json(tree) for name, tree in data.items()})

    def to_json(self) -> dict[str, Any]:
        return {name: _tree_to_json(tree) for name, tree in self.items()}

    def leaves(self) -> Iterator[Leaf]:
        for tree in self.values():
            yield from trees.leaves(tree)

    def named(self, prefix: str) -> Columns:
        """The columns with `prefix` before their names in the table."""

        def leaf(one: Leaf) -> Any:
            return Leaf(f"{prefix}{one.column}", one.dtype, one.shape)

        return Columns({name: trees.tree_map(leaf, tree) for name, tree in self.items()})

    def shape(self) -> str:
        """A text that is equal for policies that can share columns; the order of keys counts."""
        return json.dumps(self.to_json())


def _leaves_of(tree: Tree, column: str, name: str, where: str) -> Tree:
    if isinstance(tree, dict):
        return {key: _leaves_of(part, f"{column}/{_escaped(key)}", name, where) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_leaves_of(part, f"{column}/{i}", name, where) for i, part in enumerate(tree))
    if name == "infos":
        return Leaf(column, "json")
    array = cast(np.ndarray, tree)
    if array.dtype.kind not in _KINDS:
        where, fix = f"{where}, column {column!r}", "return arrays of numbers from compute_actions and observations"
        raise DatasetError("The column does not contain numbers.", where, f"{array.dtype} array", fix=fix)
    return Leaf(column, array.dtype.newbyteorder("<").str.replace("=", "<"), array.shape[1:])


def _escaped(key: Any) -> str:
    return str(key).replace("%", "%25").replace("/", "%2F").replace(":", "%3A")


def _tree_to_json(tree: Tree) -> Any:
    # Pairs keep the order of the space's keys.
    if isinstance(tree, dict):
        return {"dict": [[key_to_json(key), _tree_to_json(part)] for key, part in tree.items()]}
    if isinstance(tree, tuple):
        return {"tuple": [_tree_to_json(part) for part in tree]}
    return {"column": tree.column, "dtype": tree.dtype, "shape": list(tree.shape)}


def _tree_from_json(data: Any) -> Tree:
    match data:
        case {"dict": list(pairs)}:
            return {key_from_json(key): _tree_from_json(part) for key, part in pairs}
        case {"tuple": list(parts)}:
            return tuple(_tree_from_json(part) for part in parts)
        case {"column": str(column), "dtype": str(dtype), "shape": list(shape)}:
            if dtype != "json" and np.dtype(dtype).kind not in _KINDS:
                raise ValueError(f"a column of type {dtype}")
            return Leaf(column, dtype, tuple(int(size) for size in shape))
    raise ValueError(f"not a description of a column: {data!r}")


def schema_of(policies: Mapping[str, Columns]) -> pa.Schema:
    """The schema of a table with the columns of these policies."""
    fields = [pa.field(name, pa.string(), nullable=False) for name in IDS]
    fields.append(pa.field(IS_LAST, pa.bool_(), nullable=False))
    fields += [pa.field(name, pa.bool_()) for name in (TERMINATED, TRUNCATED, CONTINUES)]
    fields.append(pa.field(REWARD_LEFT_OUT, pa.float64()))
    leaves = {leaf.column: leaf for columns in policies.values() for leaf in columns.leaves()}
    return pa.schema([*fields, *(pa.field(name, leaf.arrow_type()) for name, leaf in leaves.items())])


def plain_infos(infos: Sequence[Any] | np.ndarray) -> np.ndarray:
    """[K] deep copies of info dicts, which environments may reuse, without values that JSON cannot store.

    Arrays remain arrays, because lists of their numbers would need several times their memory.
    """
    return np.fromiter((_plain(info, np.ndarray.copy) for info in infos), object, len(infos))


def bytes_of_info(info: Any) -> int:
    """The approximate memory of an info dict from `plain_infos`, in bytes."""
    size = _BYTES_OF_OBJECT
    if isinstance(info, Mapping | list):
        return size + sum(map(bytes_of_info, info.values() if isinstance(info, Mapping) else info))
    if isinstance(info, np.ndarray):
        return size + info.nbytes
    return size + len(info) if isinstance(info, str) else size


def info_to_json(info: Any) -> str:
    """An info dict as JSON: arrays as lists, keys as strings, without values that JSON cannot store."""
    return json.dumps(plain(info))


def plain(value: Any) -> Any:
    """A value without the parts that JSON cannot store; arrays become lists."""
    return _plain(value, np.ndarray.tolist)


def _plain(value: Any, of_numbers: Callable[[np.ndarray], Any]) -> Any:
    """As `plain`; `of_numbers` converts or copies NumPy arrays of numbers."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = of_numbers(value)
    elif hasattr(value, "tolist") and not isinstance(value, type):  # of NumPy, JAX or PyTorch
        value = value.tolist()
    if isinstance(value, Mapping):
        parts = ((str(key), _plain(part, of_numbers)) for key, part in value.items())
        return {key: part for key, part in parts if part is not _NOTHING}
    if isinstance(value, list | tuple):
        return [None if part is _NOTHING else part for part in (_plain(part, of_numbers) for part in value)]
    return value if value is None or isinstance(value, bool | int | float | str | np.ndarray) else _NOTHING


_NOTHING: Any = object()


def id_to_text(value: Any) -> str:
    """An agent id as text: strings unchanged, other ids as JSON; DatasetError if JSON cannot store it."""
    if isinstance(value, str) and not value.startswith("json:"):
        return value
    try:
        return "json:" + json.dumps(value, default=_plain_number)
    except TypeError as error:
        raise DatasetError("The agent id cannot be stored.", None, value).expected(
            "a string, a number, or a tuple of those", "use such ids in the environment"
        ) from error


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.number | np.bool_):
        return value.item()
    raise TypeError(f"not a JSON value: {value!r}")


def id_from_text(text: str) -> Any:
    """The inverse of `id_to_text`; ValueError for other text."""
    return key_from_json(parsed_json(text.removeprefix("json:"))) if text.startswith("json:") else text
