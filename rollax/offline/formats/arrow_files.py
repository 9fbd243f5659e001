"""The bytes of an Arrow or Parquet file in memory, found without decoding it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollax.offline.formats.limited_parquet import LimitedParquet
from rollax.offline.limits import check_decoded

_ROWS = 64
_BLOCK = struct.Struct("<qi4xq")  # where a message begins, and the lengths of its metadata and its body
_FOOTER, _MAGIC = 10, b"ARROW1"
_DICTIONARIES, _BATCHES = 2, 3  # fields of the footer
_HEADER = 2  # field of a message
_COMPRESSION = 3  # field of a record batch


def check_parquet(path: Path, max_gb: float, where: str) -> None:
    """Raises DatasetError if a whole Parquet file takes more than `max_gb` GiB; ValueError if it is damaged."""
    with LimitedParquet(path, max_gb) as limited:
        size, names, longest = limited.declared_without_texts(), limited.texts, limited.largest_page
        check_decoded(size, max_gb, where)
        if not names:
            return
        with closing(pq.ParquetFile(path)) as file:
            # So few rows that even the longest texts fit, because their lengths are known only now.
            rows = int(max(min(_ROWS, max_gb * 2**30 / max(longest, 1)), 1))
            for batch in file.iter_batches(rows, columns=names, use_threads=False):
                size += batch.nbytes
                check_decoded(size, max_gb, where)


def check_arrow(path: Path, schema: pa.Schema, max_gb: float, where: str) -> None:
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
                reader.get_batch(number).select(varying).validate(full=True)  # else rows may overlap


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
    """Where a field of a table begins, in the format of FlatBuffers; None if the table lacks it."""
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
    """A type and the types inside of it."""
    yield kind
    for number in range(kind.num_fields):
        yield from _types(kind.field(number).type)


def _varies(kind: pa.DataType) -> bool:
    """Whether rows of the type have a variable length."""
    of_texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    return any(is_one(kind) for is_one in (*of_texts, pa.types.is_list, pa.types.is_large_list))
