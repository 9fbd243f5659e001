import numpy as np
import pytest

from rollax.env.checks import FirstEpisodes, all_finite, warn_once


def test_first_episodes():
    watched = FirstEpisodes(3)
    watched.polled([])
    watched.polled([1])
    assert watched.indices == {0, 2}
    watched.polled([1, 2])
    for _ in range(FirstEpisodes.MOST_POLLS - 4):
        watched.polled([])
    assert watched.indices == {0}
    watched.polled([])
    assert watched.indices == set()


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


def test_logs_once_for_each_subject(caplog):
    for subject in ("a", "b", "a"):
        warn_once("topic", subject, f"said of {subject}")
    assert [record.getMessage() for record in caplog.records] == ["said of a", "said of b"]
