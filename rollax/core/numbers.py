"""Types of numbers in settings that no config class checks, and arrays of finite numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NON_NUMERIC_KINDS = frozenset("OSUMmc")
"""NumPy's `dtype.kind` of arrays that models cannot read as real numbers; dtypes of PyTorch have no kind."""

_TEXT = frozenset({str, bytes})
# OpenBLAS multiplies longer float64 vectors on several threads, which afterwards keep their cores busy for 0.1 s.
_ONE_THREAD = 10_000


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or NumPy, including infinity and NaN, and not a boolean."""
    return is_whole(value) or isinstance(value, float | np.floating)


def is_finite(value: Any) -> bool:
    """Whether a value is a real number of Python or NumPy whose float is finite, and not a boolean."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def numeric_array(values: Any) -> np.ndarray:
    """Returns the numbers in lists as an array, or an array unchanged; raises TypeError if the lists contain text.

    NumPy would pad every text to the longest one, so a short message could fill the memory.
    """
    if isinstance(values, np.ndarray):
        return values
    if not _TEXT.isdisjoint(map(type, np.array(values, object).ravel().tolist())):
        raise TypeError("text in place of a number")
    return np.array(values)


def all_finite(values: np.ndarray) -> bool:
    """Whether no element is NaN or infinite."""
    # If the sum of squares is finite, so are all elements; otherwise the sum may have overflowed, and each element is
    # checked.
    return math.isfinite(sum_of_squares(values)) or bool(np.isfinite(values).all())


def sum_of_squares(values: np.ndarray) -> float:
    """Returns the sum of the squared elements, without a temporary array and without a warning where it overflows."""
    flat = values.ravel()
    if flat.size <= _ONE_THREAD:
        return float(np.vdot(flat, flat))
    return float(np.einsum("i,i->", flat, flat))
