from fractions import Fraction

import numpy as np
import pytest

from rollax.numbers import all_finite, is_number, is_whole


@pytest.mark.parametrize("value", [0, -3, 10**30, np.int8(4), np.uint64(4)])
def test_whole(value):
    assert is_whole(value)
    assert is_number(value)


@pytest.mark.parametrize("value", [2.0, np.float32(0.5), np.float64(0.5), float("nan"), -np.inf])
def test_numbers_that_are_not_whole(value):
    assert not is_whole(value)
    assert is_number(value)


@pytest.mark.parametrize("value", [True, np.True_, "1", None, 1j, np.complex64(1), Fraction(1, 2), np.ones(1)])
def test_values_that_are_not_numbers(value):
    assert not is_whole(value)
    assert not is_number(value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_finite(dtype):
    """Without a warning, which would be an error here, although sums and squares overflow."""
    big = np.finfo(dtype).max
    assert all_finite(np.full((3, 4), big, dtype))
    assert all_finite(np.zeros((0, 4), dtype))
    for value in (np.nan, np.inf, -np.inf):
        values = np.full((3, 4), big, dtype)
        values[2, 1] = value
        assert not all_finite(values)
        assert not all_finite(values.T)
    assert not all_finite(np.array([np.inf, -np.inf], dtype))
