"""Windows of n steps, as digits: with γ = 0.1 the rewards 1, 2, 3 give 1.23."""

from __future__ import annotations

import numpy as np
import pytest

from rollax.batch.n_step import n_step_windows

# 0 → 1 → 2 → 3, where 3 was only observed; 4 → 5, which terminated; 6, truncated, → 7, observed; in no order of places.
FOLLOWING = np.array([1, 2, 3, -1, 5, -1, 7, -1])
REWARDS = np.array([1.0, 2.0, 3.0, np.nan, 4.0, 5.0, 6.0, np.nan])
TERMINATED, TRUNCATED = np.arange(8) == 5, np.arange(8) == 6
OBSERVED = np.isin(np.arange(8), [3, 7])


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # row: complete, return, discount, target
        (
            1,
            {
                0: (True, 1, 0.1, 1),
                2: (True, 3, 0.1, 3),
                4: (True, 4, 0.1, 5),
                5: (True, 5, 0, 5),
                6: (True, 6, 0.1, 7),
            },
        ),
        (2, {0: (True, 1.2, 0.01, 2), 2: (False, 3, 0.1, 3), 4: (True, 4.5, 0, 5), 6: (True, 6, 0.1, 7)}),
        (9, {0: (False, 1.23, 1e-3, 3), 1: (False, 2.3, 0.01, 3), 4: (True, 4.5, 0, 5)}),
    ],
)
def test_by_hand(n: int, expected: dict[int, tuple]):
    rows = np.array(list(expected))
    windows = n_step_windows(rows, FOLLOWING, REWARDS, TERMINATED, TRUNCATED, OBSERVED, n_step=n, gamma=0.1)
    found = np.stack([*windows], axis=1)
    np.testing.assert_allclose(found, [list(row) for row in expected.values()], rtol=1e-12)


def test_no_rows():
    windows = n_step_windows(np.zeros(0, int), FOLLOWING, REWARDS, TERMINATED, TRUNCATED, OBSERVED, n_step=3, gamma=0.9)
    assert all(len(column) == 0 for column in windows)
