"""`LimitedParquet`: Parquet files whose size in memory is checked before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollax.offline.limits import check_decoded

_BYTES_OF = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT = "BYTE_ARRAY"


class LimitedParquet:
    """A Parquet file whose row groups may each take at most `max_gb` GiB in memory.

    The footer declares the number of values of each column chunk, and the size of its pages without compression. A
    repeated text or byte string is once in the pages but many times in memory, so such columns are read as
    dictionaries, and expanded only if they fit.

    Raises:
        DatasetError: a row group is larger.
        pa.ArrowException, OSError: the file is damaged.
    """

    def __init__(self, path: Path, max_gb: float) -> None:
        self.metadata = pq.read_metadata(path)
        self._path, self._max_gb = path, max_gb
        repeated = {
            chunk.path_in_schema
            for group in range(self.metadata.num_row_groups)
            for chunk in self._chunks(group, None)
            if _repeats_texts(chunk)
        }
        self._file = pq.ParquetFile(path, metadata=self.metadata, read_dictionary=sorted(repeated))

    def __enter__(self) -> LimitedParquet:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group, or some of its columns."""
        size = sum(self._declared(chunk) for chunk in self._chunks(group, columns))
        self._check(size, group)
        table = self._file.read_row_group(group, columns=None if columns is None else list(columns))
        for number, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                size += sum(_bytes_of_texts(chunk) for chunk in column.chunks)
                self._check(size, group)
                table = table.set_column(number, table.column_names[number], column.cast(column.type.value_type))
        return table

    def read(self) -> pa.Table:
        """All row groups, which together have the same limit."""
        groups = range(self.metadata.num_row_groups)
        self._check(sum(self._declared(chunk) for group in groups for chunk in self._chunks(group, None)), None)
        tables = [self.read_row_group(group) for group in groups]
        return pa.concat_tables(tables) if tables else self._file.read()

    def _chunks(self, group: int, columns: Sequence[str] | None) -> Iterator[Any]:
        row_group = self.metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            path = chunk.path_in_schema  # of a list, `name.list.element`
            if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns):
                yield chunk

    def _declared(self, chunk: Any) -> int:
        """Bytes of a column chunk in memory; for dictionaries, those of the stored texts."""
        width = _BYTES_OF.get(chunk.physical_type, 0)
        if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY":
            schema = self.metadata.schema
            width = next(
                schema.column(number).length
                for number in range(len(schema))
                if schema.column(number).path == chunk.path_in_schema
            )
        if _repeats_texts(chunk) and "." in chunk.path_in_schema:
            # Lists of texts are not read as dictionaries; no value is longer than the stored bytes.
            width = chunk.total_uncompressed_size
        return max(chunk.total_uncompressed_size, chunk.num_values * width)

    def _check(self, size: int, group: int | None) -> None:
        check_decoded(size, self._max_gb, self._path if group is None else f"{self._path}, row group {group}")


def _repeats_texts(chunk: Any) -> bool:
    return chunk.physical_type == _TEXT and any("DICTIONARY" in encoding for encoding in chunk.encodings)


def _bytes_of_texts(column: pa.DictionaryArray) -> int:
    lengths = pc.call_function("binary_length", [column.dictionary])
    counts = column.indices.drop_null().value_counts()
    used = lengths.take(counts.field("values")).to_numpy(zero_copy_only=False).astype("int64")
    return int(used @ counts.field("counts").to_numpy(zero_copy_only=False))
