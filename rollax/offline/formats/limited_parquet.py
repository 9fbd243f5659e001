"""`LimitedParquet`: Parquet files whose size in memory is checked before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollax.offline.formats.common import check_decoded

_BYTES_OF = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT = "BYTE_ARRAY"
_DICTIONARY = frozenset({2, 8})  # encodings, in the numbers of Parquet
_ONCE = frozenset({0, 6})
"""Encodings that store each text once, in full."""
# The footer of a file declares numbers of values, sizes and encodings too, but PyArrow decodes by the headers of pages,
# and a footer that was changed may declare anything.
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_FIRST_READ, _LONGEST_HEADER = 1 << 10, 16 << 20  # bytes; headers with statistics of long texts are long
_MAX_DEPTH = 10
_OFFSETS = 8  # bytes: an offset or the index of a dictionary, and levels of nesting


class LimitedParquet:
    """A Parquet file whose row groups may each take at most `max_gb` GiB in memory.

    The header of a page has its number of values and its size without compression. Texts and byte strings that are
    stored once in a dictionary are repeated in memory: such columns are read as dictionaries, and expanded only if they
    fit.

    Raises:
        DatasetError: a row group is larger than `max_gb`.
        pa.ArrowException, OSError, ValueError: the file is damaged.
    """

    def __init__(self, path: Path, max_gb: float) -> None:
        self.metadata = pq.read_metadata(path)
        self._path, self._max_gb = path, max_gb
        self._pages: dict[tuple[int, int], Pages] = {}
        self._raw = open(path, "rb")  # noqa: SIM115  closed with the object
        try:
            self._file = pq.ParquetFile(path, metadata=self.metadata, read_dictionary=sorted(self._repeated_texts()))
        except BaseException:
            self._raw.close()
            raise

    def __enter__(self) -> LimitedParquet:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()
        self._file.close()

    @property
    def names(self) -> list[str]:
        return self._file.schema_arrow.names

    @property
    def texts(self) -> list[str]:
        """The paths of the columns of texts and byte strings."""
        return sorted({chunk.path_in_schema for _, chunk in self._chunks() if chunk.physical_type == _TEXT})

    @property
    def largest_page(self) -> int:
        """Bytes of the largest page, which no text of the file exceeds."""
        return max((self._pages_of(*part).largest for part in self._chunks()), default=0)

    def declared_without_texts(self) -> int:
        """Bytes of all row groups in memory, without the columns of texts."""
        return sum(self._declared(*part) for part in self._chunks() if part[1].physical_type != _TEXT)

    def values(self, columns: Sequence[str]) -> int:
        """The number of values in some columns, of all row groups."""
        return sum(self._count(*part) for part in self._chunks(columns))

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group, or some of its columns."""
        size = sum(self._declared(*part) for part in self._chunks(columns, [group]))
        self._check(size, group)
        table = self._file.read_row_group(group, columns=None if columns is None else list(columns))
        for number, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                size += sum(_bytes_of_texts(chunk) for chunk in column.chunks)
                self._check(size, group)
                table = table.set_column(number, table.column_names[number], column.cast(column.type.value_type))
        return table

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All row groups, or some of their columns; the limit applies to all row groups together."""
        self._check(sum(self._declared(*part) for part in self._chunks(columns)), None)
        tables = [self.read_row_group(group, columns) for group in range(self.metadata.num_row_groups)]
        return pa.concat_tables(tables) if tables else self._file.read(columns=None if columns is None else [*columns])

    def _chunks(
        self, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[tuple[int, int], Any]]:
        """`((row group, column), metadata)` of the column chunks of some or all columns and row groups."""
        for group in range(self.metadata.num_row_groups) if groups is None else groups:
            row_group = self.metadata.row_group(group)
            for number in range(row_group.num_columns):
                chunk = row_group.column(number)
                path = chunk.path_in_schema  # of a list, `name.list.element`
                if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                    yield (group, number), chunk

    def _pages_of(self, where: tuple[int, int], chunk: Any) -> Pages:
        if where not in self._pages:
            self._pages[where] = pages_of(self._raw, chunk)
        return self._pages[where]

    def _count(self, where: tuple[int, int], chunk: Any) -> int:
        """The number of values of a column chunk, at least one per row: the pages of a null column may have fewer."""
        return max(self._pages_of(where, chunk).values, self.metadata.row_group(where[0]).num_rows)

    def _declared(self, where: tuple[int, int], chunk: Any) -> int:
        """Bytes of a column chunk in memory; for dictionaries, the bytes of the stored texts."""
        pages, count = self._pages_of(where, chunk), self._count(where, chunk)
        is_nested = "." in chunk.path_in_schema
        width = _BYTES_OF.get(chunk.physical_type, 0)
        if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            width = self.metadata.schema.column(where[1]).length
        if chunk.physical_type == _TEXT:
            # Other encodings share parts of texts, and lists of texts are not read as dictionaries; no value is longer
            # than the pages without compression.
            once = _ONCE if is_nested else _ONCE | _DICTIONARY
            width = 0 if pages.encodings <= once else pages.size
        offsets = _OFFSETS if is_nested or chunk.physical_type == _TEXT else 0
        return max(pages.size, count * width) + count * offsets

    def _repeated_texts(self) -> set[str]:
        """The columns of texts, outside of lists, that have dictionaries."""
        found = set()
        for where, chunk in self._chunks():
            if chunk.physical_type == _TEXT and "." not in chunk.path_in_schema:
                with suppress(ValueError):  # a damaged row group, which is refused when it is read
                    if not self._pages_of(where, chunk).encodings.isdisjoint(_DICTIONARY):
                        found.add(chunk.path_in_schema)
        return found

    def _check(self, size: int, group: int | None) -> None:
        check_decoded(size, self._max_gb, self._path if group is None else f"{self._path}, row group {group}")


def _bytes_of_texts(column: pa.DictionaryArray) -> int:
    lengths = pc.call_function("binary_length", [column.dictionary])
    counts = column.indices.drop_null().value_counts()
    used = lengths.take(counts.field("values")).to_numpy(zero_copy_only=False).astype("int64")
    return int(used @ counts.field("counts").to_numpy(zero_copy_only=False))


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
    """The pages of the column chunk with PyArrow's metadata `chunk`; ValueError if they are damaged."""
    start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    if dictionary is not None and 0 < dictionary < start:
        start = dictionary
    at, end = start, start + chunk.total_compressed_size
    values = size = largest = 0
    encodings = set()
    while values < chunk.num_values and at < end:
        header, length = _header_at(file, at)
        of_page, stored, decoded = header.get(1), header.get(3), header.get(2)
        if not (isinstance(of_page, int) and _is_count(stored) and _is_count(decoded)):
            raise ValueError(f"a page of {stored} bytes, which are {decoded} without compression")
        of_values, encoding = {_DATA_PAGE: (5, 2), _DATA_PAGE_V2: (8, 4)}.get(of_page, (0, 0))
        if of_values:
            described = header.get(of_values)
            if not isinstance(described, dict):
                raise ValueError(f"a page of {described} values")
            count, encoded_as = described.get(1), described.get(encoding)
            if not (_is_count(count) and isinstance(encoded_as, int)):
                raise ValueError(f"a page of {count} values in the encoding {encoded_as}")
            values += count
            encodings.add(encoded_as)
        size += decoded + length
        largest = max(largest, decoded)
        at += length + stored
    return Pages(values, size, largest, frozenset(encodings))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and value >= 0


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
        return {field: value for field, value in self._fields(levels) if isinstance(value, int | dict)}

    def _fields(self, levels: int) -> Iterator[tuple[int, Any]]:
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._integer()
            kind &= 15
            yield field, None if kind in (1, 2) else self._value(kind, levels)  # a boolean is in its field's type

    def _value(self, kind: int, levels: int) -> Any:
        if not levels:
            raise ValueError("the header of a page is nested too deeply")
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
