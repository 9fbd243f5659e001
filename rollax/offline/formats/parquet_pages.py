"""The pages of a column in a Parquet file, by their own headers.

The footer of a file declares numbers of values, sizes and encodings too, but PyArrow decodes what the pages have: in a
footer that was changed, these numbers may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_FIRST_READ, _LONGEST_HEADER = 1 << 10, 16 << 20  # bytes; headers with statistics of long texts are long
_MAX_DEPTH = 10


class Pages(NamedTuple):
    """The pages that are decoded for a column of a row group.

    Args:
        values: number of values, with nulls and empty lists.
        size: bytes without compression.
        largest: bytes of the largest page without compression.
        encodings: the numbers of the encodings of the values, as Parquet defines them.
    """

    values: int
    size: int
    largest: int
    encodings: frozenset[int]


def pages_of(file: BinaryIO, chunk: Any) -> Pages:
    """The pages of a column chunk, given by its metadata of PyArrow; ValueError if they are damaged."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    at, end = start, start + chunk.total_compressed_size
    values = size = largest = 0
    encodings = set()
    while values < chunk.num_values and at < end:
        header, length = _header_at(file, at)
        of_page, stored, decoded = header.get(1), header.get(3), header.get(2)
        if not (isinstance(stored, int) and isinstance(decoded, int) and stored >= 0 and decoded >= 0):
            raise ValueError(f"a page of {stored} bytes, which are {decoded} without compression")
        of_values, encoding = {_DATA_PAGE: (5, 2), _DATA_PAGE_V2: (8, 4)}.get(of_page, (0, 0))  # type: ignore[arg-type]
        if of_values:
            described = header.get(of_values)
            count = described.get(1) if isinstance(described, dict) else None
            if not isinstance(described, dict) or not isinstance(count, int) or count < 0:
                raise ValueError(f"a page of {count} values")
            values += count
            encodings.add(described.get(encoding))
        size += decoded + length
        largest = max(largest, decoded)
        at += length + stored
    return Pages(values, size, largest, frozenset(encodings))


def _header_at(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of a page at an offset, and its length; ValueError if it is damaged."""
    most = _FIRST_READ
    while True:
        file.seek(at)
        content = file.read(most)
        reader = _Thrift(content)
        try:
            return reader.struct(_MAX_DEPTH), reader.at
        except IndexError:
            if len(content) < most or most >= _LONGEST_HEADER:
                raise ValueError("the header of a page is damaged") from None
            most *= 16


class _Thrift:
    """Reads a struct in Thrift's compact protocol. IndexError at the end of the bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def struct(self, levels: int) -> dict[int, Any]:
        """Field id -> integer or struct; fields of other types are skipped."""
        if not levels:
            raise ValueError("the header of a page is nested too deeply")
        return {field: value for field, value in self._fields(levels) if isinstance(value, int | dict)}

    def _fields(self, levels: int) -> Iterator[tuple[int, Any]]:
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._integer()
            kind &= 15
            yield field, None if kind in (1, 2) else self._value(kind, levels)  # a boolean is in the type of a field

    def _value(self, kind: int, levels: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._skip(8)
            case 8:
                return self._skip(self._unsigned())
            case 9 | 10:
                size = self._byte()
                kind, count = size & 15, size >> 4
                return self._skip_values([kind], self._unsigned() if count == 15 else count, levels)
            case 11:
                count = self._unsigned()
                kinds = self._byte() if count else 0
                return self._skip_values([kinds >> 4, kinds & 15], count, levels)
            case 12:
                return self.struct(levels - 1)
        raise ValueError(f"a field of the unknown type {kind}")

    def _skip_values(self, kinds: list[int], count: int, levels: int) -> None:
        for _ in range(count):
            for kind in kinds:
                self._value(kind, levels - 1)

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._content):
            raise IndexError

    def _byte(self) -> int:
        value = self._content[self.at]
        self.at += 1
        return value

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("an integer of more than 64 bits")

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
