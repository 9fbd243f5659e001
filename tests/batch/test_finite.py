"""Columns that may contain NaN and infinity."""

import numpy as np
import pytest

from rollax.batch.finite import first_not_finite


def test_infinity_is_allowed_in_observations_only():
    column = np.array([[1.0, 2.0], [3.0, np.inf], [np.nan, 4.0]], np.float32)
    assert first_not_finite("obs", column[:2]) is None
    assert first_not_finite("obs", column).row == 2
    found = first_not_finite("rewards", column)
    assert (found.row, found.number) == (1, np.inf)
    assert found.array is column


@pytest.mark.parametrize("name", ["obs", "actions"])
def test_nested_columns_and_other_types(name):
    column = {"ids": np.array([1, 2]), "parts": (np.zeros(2), np.array([0.0, np.nan]))}
    found = first_not_finite(name, column)
    assert found.row == 1
    assert found.array is column["parts"][1]
    assert first_not_finite(name, {"ids": column["ids"], "flags": np.array([True, False])}) is None
