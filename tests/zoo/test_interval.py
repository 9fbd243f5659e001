"""The interval of further scores."""

import pytest

from rollax.zoo.interval import prediction_interval


def test_interval_of_further_scores():
    # Mean 20, standard deviation 10, t(0.975, 2) = 4.302653: one more score in 20 ± 4.302653 · 10 · √(1/3 + 1),
    # the mean of three more in 20 ± 4.302653 · 10 · √(2/3).
    assert prediction_interval([10.0, 20.0, 30.0], 1, learned=100) == pytest.approx((-29.682753, 69.682753))
    assert prediction_interval([10.0, 20.0, 30.0], 3, learned=100) == pytest.approx((-15.131016, 55.131016), rel=1e-6)


def test_equal_scores_have_an_interval_that_is_no_point():
    # 480 points were learned, so the deviation is taken as 4.8: 500 ± 4.302653 · 4.8 · √(1/3 + 1)
    interval = prediction_interval([500.0, 500.0, 500.0], 1, learned=480)
    assert interval == pytest.approx((476.15228, 523.84772))
    assert interval.holds(490.0)
    assert not interval.holds(470.0)
