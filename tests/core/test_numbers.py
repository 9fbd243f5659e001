from fractions import Fraction

import numpy as np
import pytest

from rollax.core.numbers import all_finite, is_finite, is_number, is_whole, numeric_array, sum_of_squares
from tests.env.refused import raised


@pytest.mark.parametrize(
    ("values", "number", "whole"),
    [
        ([0, -3, 10**30, np.int8(4), np.uint64(4)], True, True),
        ([2.0, np.float32(0.5), np.float64(0.5), float("nan"), -np.inf], True, False),
        ([True, np.True_, "1", None, 1j, np.complex64(1), Fraction(1, 2), np.ones(1)], False, False),
    ],
    ids=["whole", "others", "none"],
)
def test_numbers(values, number, whole):
    assert {(is_number(value), is_whole(value)) for value in values} == {(number, whole)}


def test_finite():
    assert all(map(is_finite, [0, -2.5, np.float32(3), np.uint64(2**64 - 1), 2**1023]))
    assert not any(map(is_finite, [float("nan"), -np.inf, np.float16("inf"), 10**400, -(10**400), True, "1", None]))


@pytest.mark.parametrize("rows", [3, 3_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_finite(dtype, rows):
    """Without a warning, which would be an error here, although sums and squares overflow."""
    big = np.finfo(dtype).max
    assert all_finite(np.full((rows, 4), big, dtype))
    assert all_finite(np.zeros((0, 4), dtype))
    for value in (np.nan, np.inf, -np.inf):
        values = np.full((rows, 4), big, dtype)
        values[2, 1] = value
        assert not all_finite(values)
        assert not all_finite(values.T)
    assert not all_finite(np.array([np.inf, -np.inf], dtype))


@pytest.mark.parametrize("size", [0, 3, 10_000, 10_001])
def test_sum_of_squares(size):
    assert sum_of_squares(np.full((size, 2), 1.5)) == pytest.approx(2 * size * 2.25)


def test_arrays_of_numbers():
    for values in ([1, 2], [[1.5], [2]], [True], [], [1 << 70], [np.float32(1)], [None]):
        np.testing.assert_array_equal(numeric_array(values), np.array(values), strict=True)
    array = np.array(["a"])
    assert numeric_array(array) is array
    raised(ValueError, numeric_array, [["a"], ["b", "c"]], says="inhomogeneous")


@pytest.mark.parametrize("values", [["a"], [1, "2"], [[1.0], ["x"]], [b"1"], "a"])
def test_text_is_no_number(values):
    raised(TypeError, numeric_array, values)
