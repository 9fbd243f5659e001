"""Student's t distribution, and the interval of further scores."""

import math

import pytest
from scipy import stats

from rollax.zoo.interval import prediction_interval, student_cdf, student_quantile


@pytest.mark.parametrize(
    ("t", "degrees", "probability"),
    [
        (1.0, 1, 0.75),  # 1/2 + arctan(1) / π
        (math.sqrt(2), 2, 0.5 + math.sqrt(2) / 4),  # 1/2 + t / (2 √(2 + t²))
        (math.sqrt(3), 3, 0.5 + (math.pi / 4 + 1 / 2) / math.pi),  # θ = π/4: 1/2 + (θ + sin θ cos θ) / π
        (2.0, 4, 0.5 + math.sqrt(0.5) * (1 + 1 / 4) / 2),  # θ = π/4: 1/2 + sin θ (1 + cos² θ / 2) / 2
        (0.0, 5, 0.5),
    ],
)
def test_distribution_of_student(t, degrees, probability):
    assert student_cdf(t, degrees) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 30, 101])
def test_quantile_is_that_of_scipy(degrees):
    assert student_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)


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
