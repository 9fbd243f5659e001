"""What counts as a number in settings that no config class checks."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of Python or NumPy; a flag is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a real number of Python or NumPy, infinity and NaN included; a flag is none."""
    return is_whole(value) or isinstance(value, float | np.floating)
