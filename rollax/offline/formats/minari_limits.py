"""The memory of a Minari episode, from the sizes in its files, without decoding."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset
from gymnasium import Space
from gymnasium.spaces import Box
from minari.dataset.minari_storage import is_image_space
from PIL import Image

from rollax.core.spaces import leaves, walk
from rollax.errors import DatasetError, RollaxError
from rollax.offline.formats.arrow_files import check_arrow, check_parquet
from rollax.offline.limits import check_decoded


def check_described(space: Any) -> None:
    """Raises ValueError for the JSON of a space with a dtype that is not one of numbers.

    Minari makes arrays of that dtype from it, and each element of a text or of a structure may have any size.
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
    """Refuses an episode that takes more than `max_gb` GiB, and images that are larger than their space.

    Args:
        storage: Minari's storage of a data set.
        index: index of the episode.
        where: location of the episode in errors.
    Raises:
        DatasetError: it is larger, or damaged.
    """
    try:
        if storage.FORMAT == "hdf5":
            _check_hdf5(storage, index, max_gb, where)
        else:
            _check_arrow(storage, index, max_gb, where)
    except RollaxError:
        raise
    except Exception as error:  # of many types, from h5py, PyArrow and Pillow
        got = f"{type(error).__name__}: {error}"
        raise DatasetError("The episode cannot be read.", where=where, got=got) from error


def _check_hdf5(storage: Any, index: int, max_gb: float, where: str) -> None:
    with h5py.File(Path(storage.data_path) / "main_data.hdf5", "r") as file:
        episode: Any = file[f"episode_{index}"]
        images = [
            (array, space)
            for name in ("observations", "actions")
            for array, space in _leaves(episode[name], getattr(storage, f"{name[:-1]}_space"))
            if storage._jpeg_encoding and is_image_space(space)
        ]
        size = sum(array.nbytes for array in _arrays(episode))
        check_decoded(size + sum(len(array) * _size(space) for array, space in images), max_gb, where)
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


def _check_arrow(storage: Any, index: int, max_gb: float, where: str) -> None:
    folder, spaces = Path(storage.data_path) / str(index), (storage.observation_space, storage.action_space)
    boxes = [leaf for space in spaces for _, leaf in leaves(space) if isinstance(leaf, Box)]
    image = max(filter(is_image_space, boxes), key=_size, default=None)
    data = pyarrow.dataset.dataset(str(folder), format=storage.FORMAT, ignore_prefixes=["_", ".", "metadata.json"])
    rows = data.count_rows()
    check_decoded(rows * sum(_row_bytes(field.type, image) for field in data.schema), max_gb, where)
    for file in map(Path, data.files):
        if storage.FORMAT == "parquet":
            check_parquet(file, max_gb, where)
        else:
            check_arrow(file, data.schema, max_gb, where)
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
    # Such as one that stores equal rows once: Minari writes no such columns.
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
    """Reads the size in the header of each image."""
    for image in images:
        with Image.open(io.BytesIO(image)) as opened:  # reads only the header
            width, height = opened.size
        if space is None or height * width > int(np.prod(space.shape[:2])):
            raise DatasetError("An image is larger than its space.", where, f"{height} × {width} pixels").expected(
                "no images" if space is None else f"{space.shape[0]} × {space.shape[1]}", "use another copy of the data"
            )


def _size(space: Box | None) -> int:
    return 0 if space is None else int(np.prod(space.shape))
