"""The rule of recorded data and replay buffers: no column may hold NaN, and only `obs` may hold infinity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollax.batch.sample_batch import SampleBatch
from rollax.core import trees


class NotFinite(NamedTuple):
    """The first number of a column that is NaN or infinite and not allowed.

    Attributes:
        row: the row of the column.
        number: NaN or infinity.
        array: the array of the column, [rows, ...], that holds it.
    """

    row: int
    number: np.floating
    array: np.ndarray


def first_not_finite(name: str, column: trees.Tree) -> NotFinite | None:
    """Returns the first NaN or infinity in a column; None if there is none.

    Infinity is allowed in the column `obs`, because the observation space may allow it.

    Args:
        name: the name of the column, as in `SampleBatch`.
        column: arrays [rows, ...]; only floating-point arrays are searched.
    """
    for array in trees.leaves(column):
        if array.dtype.kind != "f":
            continue
        bad = np.isnan(array) if name == SampleBatch.OBS else ~np.isfinite(array)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            return NotFinite(row, array[bad][0], array)
    return None
