"""`LimitedParquet`: Parquet files whose size in memory is checked before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollax.offline.formats.parquet_pages import Pages, pages_of
from rollax.offline.limits import check_decoded

_BYTES_OF = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT = "BYTE_ARRAY"
_DICTIONARY = frozenset({2, 8})  # encodings, in the numbers of Parquet
_ONCE = frozenset({0, 6})
"""Encodings that store each text once, in full."""
_OFFSETS = 8  # bytes: an offset or the index of a dictionary, and levels of nesting


class LimitedParquet:
    """A Parquet file whose row groups may each take at most `max_gb` GiB in memory.

    The headers of the pages have their number of values and their size without compression. A repeated text or byte
    string is once in the pages but many times in memory: columns with dictionaries are read as such, and expanded only
    if they fit.

    Raises:
        DatasetError: a row group is larger.
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
        """The names of the columns."""
        return self._file.schema_arrow.names

    @property
    def texts(self) -> list[str]:
        """The paths of the columns of texts and byte strings."""
        chunks = (chunk for group in range(self.metadata.num_row_groups) for _, chunk in self._chunks(group, None))
        return sorted({chunk.path_in_schema for chunk in chunks if chunk.physical_type == _TEXT})

    @property
    def largest_page(self) -> int:
        """Bytes of the largest page, which no text of the file exceeds."""
        groups = range(self.metadata.num_row_groups)
        pages = [self._pages_of(*part) for group in groups for part in self._chunks(group, None)]
        return max((one.largest for one in pages), default=0)

    def declared_without_texts(self) -> int:
        """Bytes of all row groups in memory, without the columns of texts."""
        groups = range(self.metadata.num_row_groups)
        parts = [part for group in groups for part in self._chunks(group, None)]
        return sum(self._declared(*part) for part in parts if part[1].physical_type != _TEXT)

    def values(self, columns: Sequence[str]) -> int:
        """The number of values in some columns, of all row groups."""
        groups = range(self.metadata.num_row_groups)
        return sum(self._count(*part) for group in groups for part in self._chunks(group, columns))

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group, or some of its columns."""
        size = sum(self._declared(*part) for part in self._chunks(group, columns))
        self._check(size, group)
        table = self._file.read_row_group(group, columns=None if columns is None else list(columns))
        for number, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                size += sum(_bytes_of_texts(chunk) for chunk in column.chunks)
                self._check(size, group)
                table = table.set_column(number, table.column_names[number], column.cast(column.type.value_type))
        return table

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All row groups, which together have the same limit, or some of their columns."""
        groups = range(self.metadata.num_row_groups)
        self._check(sum(self._declared(*part) for group in groups for part in self._chunks(group, columns)), None)
        tables = [self.read_row_group(group, columns) for group in groups]
        return pa.concat_tables(tables) if tables else self._file.read(columns=None if columns is None else [*columns])

    def _chunks(self, group: int, columns: Sequence[str] | None) -> Iterator[tuple[tuple[int, int], Any]]:
        """`(row group, number of the column), metadata` of column chunks."""
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
        """The number of values of a column chunk; of a null column, the pages may have fewer than the row group."""
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
            # than the stored bytes.
            once = _ONCE if is_nested else _ONCE | _DICTIONARY
            width = 0 if pages.encodings <= once else pages.size
        offsets = _OFFSETS if is_nested or chunk.physical_type == _TEXT else 0
        return max(pages.size, count * width) + count * offsets

    def _repeated_texts(self) -> set[str]:
        """The columns of texts, outside of lists, that have dictionaries."""
        found = set()
        for group in range(self.metadata.num_row_groups):
            for where, chunk in self._chunks(group, None):
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
