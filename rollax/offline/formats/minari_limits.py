"""Checks the memory that a Minari episode needs, from the sizes in its files, before it is decoded."""

from __future__ import annotations

import io
import mmap
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from sys import getsizeof
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from gymnasium import Space
from gymnasium.spaces import Box
from minari.dataset.minari_storage import is_image_space
from PIL import Image

from rollax.core.spaces import leaves, walk
from rollax.errors import DatasetError
from rollax.offline.formats.common import ANOTHER_FILE, check_decoded
from rollax.offline.formats.limited_parquet import LimitedParquet

HDF5_FILE = "main_data.hdf5"
_ROWS = 64  # rows of texts or images that are read at once
_BLOCK = struct.Struct("<qi4xq")  # where a message begins, and the lengths of its metadata and its body
_FOOTER, _MAGIC = 10, b"ARROW1"
_DICTIONARIES, _BATCHES = 2, 3  # fields of the footer
_HEADER = 2  # field of a message
_COMPRESSION = 3  # field of a record batch


def check_described(space: Any) -> None:
    """Raises ValueError if the dtype in the JSON of a space is not numeric.

    Minari makes arrays of this dtype, and an element of a text or structured dtype may have any size.
    """
    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        parts = space["subspaces"]
        for part in parts.values() if kind == "Dict" else parts:
            check_described(part)
    elif kind == "Text":
        raise ValueError("a space of texts, which are not numbers")
    elif "dtype" in space and np.dtype(space["dtype"]).kind not in "biuf":
        raise ValueError(f"a space of the dtype {space['dtype']!r:.100}")


def check_episode(storage: Any, index: int, max_gb: float, where: str) -> None:
    """Raises DatasetError for an episode of more than `max_gb` GiB, or with images that are larger than their space.

    Damaged files raise errors of many types.
    """
    (_check_hdf5 if storage.FORMAT == "hdf5" else _check_arrow)(storage, index, max_gb, where)


def _check_hdf5(storage: Any, index: int, max_gb: float, where: str) -> None:
    with h5py.File(Path(storage.data_path) / HDF5_FILE, "r") as file:
        episode: Any = file[f"episode_{index}"]
        images = [
            (array, space)
            for name in ("observations", "actions")
            for array, space in _leaves(episode[name], getattr(storage, f"{name[:-1]}_space"))
            if storage._jpeg_encoding and is_image_space(space)
        ]
        size = sum(array.nbytes for array in _arrays(episode))
        size += sum(len(array) * _size(space) for array, space in images)
        check_decoded(size, max_gb, where)
        for array in _arrays(episode):
            for more in _varying(array, max_gb):
                size += more
                check_decoded(size, max_gb, where)
        for array, space in images:
            _check_images((array[row].tobytes() for row in range(len(array))), space, where)


def _leaves(group: Any, space: Space) -> list[tuple[Any, Any]]:
    """The arrays of a group with their spaces; Minari names the parts of a Tuple `_index_0` and so on."""

    def part(group: Any, key: Any) -> Any:
        return group[f"_index_{key}" if isinstance(key, int) else key]

    found: list[tuple[Any, Any]] = []
    walk(lambda leaf, path, array: found.append((array, leaf)), space, group, part=part)
    return found


def _arrays(group: Any) -> Iterator[Any]:
    for part in group.values():
        if isinstance(part, h5py.Group):
            yield from _arrays(part)
        else:
            yield part


def _varying(array: Any, max_gb: float) -> Iterator[int]:
    """The bytes in memory of an array's rows of variable length, block by block; rows may share bytes in the file.

    ValueError for an array of several axes, which Minari does not write.
    """
    if array.dtype.kind != "O" or not array.shape:  # a single text is not longer than the file
        return
    if len(array.shape) > 1:
        raise ValueError(f"an array of the shape {array.shape} with texts or lists")
    # No row is longer than the file, so this many rows fit.
    at_once = int(max(min(_ROWS, max_gb * 2**30 / array.file.id.get_filesize()), 1))
    for start in range(0, len(array), at_once):
        rows = array[start : start + at_once]
        yield sum(map(getsizeof, rows))


def steps_by_metadata(storage: Any, index: int) -> Any:
    """The number of steps of an episode in its metadata; None if the metadata lacks it."""
    if storage.FORMAT != "hdf5":
        (metadata,) = storage.get_episode_metadata([index])
        return metadata.get("total_steps")
    # Minari would read all attributes. A list of texts among them, which may share bytes, could fill the memory.
    with h5py.File(Path(storage.data_path) / HDF5_FILE, "r") as file:
        attributes = file[f"episode_{index}"].attrs
        if "total_steps" not in attributes:
            return None
        if attributes.get_id("total_steps").dtype.kind not in "iu":
            raise ValueError("total_steps is no integer")
        return attributes["total_steps"]


def _check_arrow(storage: Any, index: int, max_gb: float, where: str) -> None:
    folder, spaces = Path(storage.data_path) / str(index), (storage.observation_space, storage.action_space)
    boxes = [leaf for space in spaces for _, leaf in leaves(space) if isinstance(leaf, Box)]
    image = max(filter(is_image_space, boxes), key=_size, default=None)
    data = pyarrow.dataset.dataset(str(folder), format=storage.FORMAT, ignore_prefixes=["_", ".", "metadata.json"])
    rows = data.count_rows()
    check_decoded(rows * sum(_row_bytes(field.type, image) for field in data.schema), max_gb, where)
    for file in map(Path, data.files):
        if storage.FORMAT == "parquet":
            _check_parquet_file(file, max_gb, where)
        else:
            _check_arrow_file(file, data.schema, max_gb, where)
    names = [field.name for field in data.schema if any(map(_is_encoded, _leaf_types(field.type)))]
    for batch in data.to_batches(columns=names, batch_size=64) if names else ():
        for column in batch.columns:
            for leaf in _encoded_leaves(column):
                _check_images((one.as_py() for one in leaf if one.is_valid), image, where)


def _row_bytes(kind: pa.DataType, image: Box | None) -> int:
    """Bytes of a row of this type, without its texts and lists of variable length; ValueError for an unusual type."""
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * _row_bytes(kind.value_type, image)
    if pa.types.is_struct(kind):
        return sum(_row_bytes(field.type, image) for field in kind)
    if _is_encoded(kind):
        return _size(image)
    if pa.types.is_primitive(kind):
        return max(kind.bit_width // 8, 1)
    if pa.types.is_null(kind) or pa.types.is_list(kind) or pa.types.is_string(kind):
        return 8  # a reference, or an offset
    # Such as a type that stores equal rows once: Minari writes no such columns.
    raise ValueError(f"a column of the type {kind}")


def _leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaf_types(field.type)
    else:
        yield kind


def _encoded_leaves(column: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _encoded_leaves(part)
    elif _is_encoded(column.type):
        yield column


def _is_encoded(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _check_images(images: Iterable[bytes], space: Box | None, where: str) -> None:
    """Raises DatasetError for an image that is larger than its space, by the size in its header."""
    for image in images:
        with Image.open(io.BytesIO(image)) as opened:  # reads only the header
            width, height = opened.size
        if space is None or height * width > int(np.prod(space.shape[:2])):
            expected = "no images" if space is None else f"{space.shape[0]} × {space.shape[1]}"
            got = f"{height} × {width} pixels"
            raise DatasetError("An image is larger than its space.", where, got, expected=expected, fix=ANOTHER_FILE)


def _size(space: Box | None) -> int:
    return 0 if space is None else int(np.prod(space.shape))


def _check_parquet_file(path: Path, max_gb: float, where: str) -> None:
    """Raises DatasetError if a whole Parquet file takes more than `max_gb` GiB; ValueError if it is damaged."""
    with LimitedParquet(path, max_gb) as limited:
        size, names, longest = limited.declared_without_texts(), limited.texts, limited.largest_page
        check_decoded(size, max_gb, where)
        if not names:
            return
        with closing(pq.ParquetFile(path)) as file:
            # Few enough rows that the longest texts fit: lengths are known only after reading.
            rows = int(max(min(_ROWS, max_gb * 2**30 / max(longest, 1)), 1))
            for batch in file.iter_batches(rows, columns=names, use_threads=False):
                size += batch.nbytes
                check_decoded(size, max_gb, where)


def _check_arrow_file(path: Path, schema: pa.Schema, max_gb: float, where: str) -> None:
    """Raises DatasetError if the texts and lists of an Arrow file take more than `max_gb` GiB.

    Rows of a fixed length are counted by the caller. ValueError for a damaged file, and for compressed data, whose size
    is not known before it is decoded.
    """
    size = path.stat().st_size
    with open(path, "rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content:
        try:
            compressed = any(_is_compressed(content, size))
        except (struct.error, IndexError) as error:
            raise ValueError(f"a damaged file: {error}") from error
        if compressed:
            raise ValueError("compressed data, which Minari does not write")
    # Buffers are not longer than the file, but columns may share them.
    varying = [field.name for field in schema if any(map(_varies, _types(field.type)))]
    check_decoded(size * sum(sum(map(_varies, _types(field.type))) for field in schema), max_gb, where)
    if varying:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                reader.get_batch(number).select(varying).validate(full=True)  # refuses overlapping rows


def _is_compressed(content: mmap.mmap, size: int) -> Iterator[bool]:
    """For each record batch and dictionary in the footer, whether its buffers are compressed."""
    if content[:6] != _MAGIC or content[size - 6 :] != _MAGIC:
        raise ValueError("no Arrow file")
    begin = size - _FOOTER - _unsigned(content, size - _FOOTER)
    footer = begin + _unsigned(content, begin)
    for field in (_DICTIONARIES, _BATCHES):
        at = _field(content, footer, field)
        if at is None:
            continue
        blocks = at + _unsigned(content, at)
        for number in range(_unsigned(content, blocks)):
            start, *_ = _BLOCK.unpack_from(content, blocks + 4 + number * _BLOCK.size)
            start += 8 if _unsigned(content, start) == 0xFFFFFFFF else 4
            header = _field(content, start + _unsigned(content, start), _HEADER)
            if header is None or field == _DICTIONARIES:
                raise ValueError("a message that is not a record batch")
            yield _field(content, header + _unsigned(content, header), _COMPRESSION) is not None


def _field(content: Any, table: int, number: int) -> int | None:
    """The position of a field in a table of FlatBuffers; None if the table lacks the field."""
    (back,) = struct.unpack_from("<i", content, table)
    described = table - back
    (length,) = struct.unpack_from("<H", content, described)
    place = 4 + 2 * number
    if place >= length:
        return None
    (offset,) = struct.unpack_from("<H", content, described + place)
    return table + offset if offset else None


def _unsigned(content: Any, at: int) -> int:
    return struct.unpack_from("<I", content, at)[0]


def _types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type and the types inside it."""
    yield kind
    for number in range(kind.num_fields):
        yield from _types(kind.field(number).type)


def _varies(kind: pa.DataType) -> bool:
    """Whether rows of the type have a variable length."""
    of_texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    return any(is_one(kind) for is_one in (*of_texts, pa.types.is_list, pa.types.is_large_list))
