"""Helpers for columns."""

import numpy as np

from rollax.batch.columns import positions_in


def test_positions_in_an_array_in_any_order():
    # 30 is at 0, 10 at 1, 20 at 3; -1 is there twice, as an unused slot, and is not looked for
    array = np.array([30, 10, -1, 20, -1])
    np.testing.assert_array_equal(positions_in(array, np.array([20, 30, 10, 20])), [3, 0, 1, 3])
    assert len(positions_in(array, array[:0])) == 0
