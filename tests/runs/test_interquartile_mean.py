import numpy as np
import pytest
from scipy.stats import bootstrap, trim_mean

from rollax.runs.interquartile_mean import bootstrap_interval, interquartile_mean


def test_a_quarter_is_left_out_at_each_end():
    # Sorted 0 1 2 3 4 5 6 100: without 0, 1 and 6, 100 the mean is (2 + 3 + 4 + 5) / 4.
    assert interquartile_mean(np.array([0.0, 1, 5, 2, 100, 3, 4, 6])) == 3.5
    # Of 5 scores one is left out at each end, of 3 none.
    assert interquartile_mean(np.array([9.0, 1, 2, 6, -50])) == 3
    assert interquartile_mean(np.array([9.0, 1, 2])) == 4


@pytest.mark.parametrize("number", range(1, 14))
def test_as_in_scipy(number):
    scores = np.random.default_rng(number).normal(size=(3, number, 2))
    np.testing.assert_allclose(interquartile_mean(scores, axis=1), trim_mean(scores, 0.25, axis=1), rtol=1e-12)


def test_the_interval_of_two_seeds():
    # Means of two draws from {0, 4}: 0, 2 and 4 with probabilities 1/4, 1/2 and 1/4: the quantiles are 0 and 4.
    low, high = bootstrap_interval([np.array([0.0, 4.0])])
    assert (low, high) == (0, 4)


def test_scores_are_drawn_within_each_environment():
    # One seed in each environment: each draw is the same, however much the environments differ.
    assert bootstrap_interval([np.array([0.0]), np.array([1000.0])]) == (500, 500)
    # Equal seeds within each environment: the same.
    assert bootstrap_interval([np.full(4, 1.0), np.full(4, 9.0)]) == (5, 5)


def test_one_environment_as_in_scipy():
    scores = np.random.default_rng(3).normal(10, 3, size=12)
    theirs = bootstrap(
        (scores,), interquartile_mean, n_resamples=20_000, method="percentile", rng=1, vectorized=True, axis=0
    ).confidence_interval
    # Quantiles of 2000 draws vary by about 0.05 here, the interval is 4 wide.
    np.testing.assert_allclose(bootstrap_interval([scores]), theirs, atol=0.25)


def test_points_of_curves_are_drawn_together():
    values = np.array([[0.0, 10.0], [4.0, 14.0], [8.0, 18.0]])
    low, high = bootstrap_interval([values])
    np.testing.assert_allclose(low[1] - low[0], 10)
    np.testing.assert_allclose(high[1] - high[0], 10)
