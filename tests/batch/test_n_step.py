"""Windows of n steps, as digits: with γ = 0.1 the rewards 1, 2, 3 give 1.23."""

import numpy as np
import pytest

from rollax.batch.n_step import n_step_windows

# 0 → 1 → 2 → 3, where 3 was only observed; 4 → 5, which terminated; 6, truncated, → 7, only observed.
FOLLOWING = np.array([1, 2, 3, -1, 5, -1, 7, -1])
REWARDS = np.array([1.0, 2.0, 3.0, np.nan, 4.0, 5.0, 6.0, np.nan])
TERMINATED, TRUNCATED = np.arange(8) == 5, np.arange(8) == 6
OBSERVED = np.isin(np.arange(8), [3, 7])
ONE_STEP = {0: (True, 1, 0.1, 1), 2: (True, 3, 0.1, 3), 4: (True, 4, 0.1, 5), 5: (True, 5, 0, 5), 6: (True, 6, 0.1, 7)}
TO_THE_END = {1: (False, 2.3, 0.01, 3), 2: (False, 3, 0.1, 3), 5: (True, 5, 0, 5), 6: (True, 6, 0.1, 7)}


@pytest.mark.parametrize(
    ("n", "expected"),  # row: complete, return, discount, target
    [
        (1, ONE_STEP),
        (2, {0: (True, 1.2, 0.01, 2), 2: (False, 3, 0.1, 3), 4: (True, 4.5, 0, 5), 6: (True, 6, 0.1, 7)}),
        (9, {0: (False, 1.23, 1e-3, 3), 1: (False, 2.3, 0.01, 3), 4: (True, 4.5, 0, 5)}),
        # 4 → 5 terminated: 4.5, 5; 6 truncated: 6 and the value of 7; 0 → 1 → 2 → 3 may continue
        (None, {0: (False, 1.23, 1e-3, 3), 4: (True, 4.5, 0, 5), **TO_THE_END}),
        (None, dict(reversed(TO_THE_END.items()))),
        (3, {}),
        (None, {}),
    ],
)
def test_by_hand(n: int | None, expected: dict[int, tuple]):
    rows = np.array(list(expected), int)
    windows = n_step_windows(rows, FOLLOWING, REWARDS, TERMINATED, TRUNCATED, OBSERVED, n_step=n, gamma=0.1)
    wanted = np.array([*expected.values()]).reshape(-1, 4)
    np.testing.assert_allclose(np.stack([*windows], axis=1), wanted, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_up_to_the_end_equals_as_many_steps_as_the_longest_trajectory(gamma):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, size=25)
    starts = np.cumsum(np.append(0, lengths + 1))[:-1]  # one position after each trajectory for its last observation
    size = int((lengths + 1).sum())
    observed, terminated, truncated = np.zeros((3, size), bool)
    observed[starts + lengths] = True
    kind = rng.integers(3, size=25)
    terminated[(starts + lengths - 1)[kind == 0]] = True
    truncated[(starts + lengths - 1)[kind == 1]] = True  # the others may continue
    rows = rng.permutation(np.flatnonzero(~observed))
    given = rows, np.arange(size) + 1, rng.random(size), terminated, truncated, observed
    whole, steps = (n_step_windows(*given, n_step=n, gamma=gamma) for n in (None, 100))
    for name in ("complete", "targets"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(steps, name))
    np.testing.assert_allclose(whole.returns, steps.returns, rtol=1e-12)
    np.testing.assert_allclose(whole.discounts, steps.discounts, rtol=1e-10)
