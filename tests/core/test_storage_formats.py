"""Arrays and plain values are restored unchanged from storage, and other values are refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rollax.core import storage
from rollax.errors import CheckpointError
from tests.env.refused import raised, refused

ARRAYS = {
    "scalar": np.array(3.5, dtype=np.float32),
    "flag": np.array(True),
    "flags": np.array([True, False, True]),
    "bytes": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "counts": np.array([-(2**62), 7], dtype=np.int64),
    "key": np.array([2**32 - 1], dtype=np.uint32),
    "double": np.array([np.pi, np.nan, -np.inf, -0.0]),
    "none": np.zeros((0, 4), dtype=np.float32),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "strided": np.arange(20, dtype=np.int64)[::-3],
    "broadcast": np.broadcast_to(np.float64(2.5), (2, 2)),
    "foreign": np.arange(3, dtype=">i4"),
    "a/b c\n": np.ones(1, dtype=np.float16),
}


def test_bfloat16_is_stored_as_float32():
    numbers = np.array([1.0, -3.140625, np.inf], ml_dtypes.bfloat16)
    back = storage.bytes_to_arrays(storage.arrays_to_bytes({"x": numbers}))["x"]
    assert back.dtype == np.float32
    assert back.astype(ml_dtypes.bfloat16).tolist() == numbers.tolist()


def test_arrays_are_restored_bit_for_bit():
    data = storage.arrays_to_bytes(ARRAYS)
    back = storage.bytes_to_arrays(data)
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert back[name].shape == array.shape, name
        assert back[name].dtype == array.dtype.newbyteorder("="), name
        assert back[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes(), name
        back[name][...] = 0  # writable
    assert storage.arrays_to_bytes(dict(reversed(ARRAYS.items()))) == data
    assert storage.bytes_to_arrays(storage.arrays_to_bytes({})) == {}


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a", np.array([{"x": 1}], dtype=object)),
        ("a", np.array(["text"])),
        ("a", np.array(["2020-01-01"], dtype="datetime64[D]")),
        ("a", np.array([1 + 2j])),
        ("__metadata__", np.zeros(2)),
    ],
)
def test_arrays_that_cannot_be_stored_are_refused(name: str, array: np.ndarray):
    refused(CheckpointError, storage.arrays_to_bytes, {name: array}, says=f"array '{name}'")


def test_damaged_arrays_are_refused():
    data = storage.arrays_to_bytes({"a": np.arange(9.0)})
    for bad in (b"", b"\0" * 7, data[:-1], data[:20], data + b"\0", b"\xff" * 100, data.replace(b"F64", b"X64")):
        with pytest.raises(CheckpointError, match=r"damaged(.|\n)*weights\.safetensors"):
            storage.bytes_to_arrays(bad, "weights.safetensors")


def test_json_is_restored_equal():
    data = {"steps": 2**130, "lr": 0.1, "small": 5e-324, "zero": -0.0}
    data |= {"on": True, "none": None, "π": ["a\n", {"b": []}]}
    text = storage.to_json_bytes(data)
    assert storage.from_json_bytes(text) == data
    assert "π" in text.decode()
    assert storage.from_json_bytes(storage.to_json_bytes({"pair": (1, 2)})) == {"pair": [1, 2]}


@pytest.mark.parametrize(
    "data",
    [
        {"x": float("nan")},
        [float("inf")],
        {"x": {3: "number as key"}},
        {"x": [{None: 1}]},
        {"x": np.float32(1.0)},
        {"x": np.zeros(2)},
        {"x": {1, 2}},
        b"bytes",
        "\ud800",
    ],
)
def test_values_that_json_would_change_are_refused(data: Any):
    raised(CheckpointError, storage.to_json_bytes, data, says="JSON")


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"x": NaN}', b"[-Infinity]", b"[1e999]", b'"\xff"', b"1 2", b"[" * 100_000]
)
def test_json_that_is_not_strict_is_refused(data: bytes):
    refused(CheckpointError, storage.from_json_bytes, data, "state.json", says="damaged...state.json")
