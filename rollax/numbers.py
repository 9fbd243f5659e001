"""Type checks of numbers in settings that no config class checks."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_whole(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or NumPy, including infinity and NaN, and not a boolean."""
    return is_whole(value) or isinstance(value, float | np.floating)
