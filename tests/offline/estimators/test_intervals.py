"""Confidence intervals by the bootstrap."""

import numpy as np
import pytest

from rollax.offline.estimators.importance import Terms, mean_of
from rollax.offline.estimators.intervals import bootstrap


def test_the_interval_of_a_mean_equals_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = bootstrap(mean_of(values), resamples=4000)
    error = values.std() / 20
    assert interval.std == pytest.approx(error, rel=0.05)
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_the_interval_of_a_skewed_mean_is_longer_on_the_long_side() -> None:
    values = np.random.default_rng(1).exponential(1.0, 40)
    interval = bootstrap(mean_of(values), resamples=4000)
    assert interval.high - values.mean() > 1.1 * (values.mean() - interval.low)


def test_intervals_cover_the_true_value() -> None:
    rng, covered = np.random.default_rng(2), 0
    for _ in range(100):
        low, high, _ = bootstrap(mean_of(rng.exponential(1.0, 60)), resamples=500)
        covered += low <= 1.0 <= high
    assert covered >= 90


def test_one_episode_or_equal_ones_have_no_width() -> None:
    assert bootstrap(mean_of(np.array([4.0]))) == (4.0, 4.0, 0.0)
    assert bootstrap(mean_of(np.full(9, 4.0))) == (4.0, 4.0, 0.0)


def test_terms_that_are_not_independent_are_drawn_together() -> None:
    # Three agents with the return of their episode say no more than one. Alone they would divide std by sqrt(3).
    rng = np.random.default_rng(3)
    returns, logs, ones = rng.exponential(1.0, 30), rng.normal(size=30), np.ones(30, np.int64)
    of_episodes = bootstrap(Terms(returns, logs, ones), resamples=300)
    order = rng.permutation(90)
    agents = Terms(np.repeat(returns, 3)[order], np.repeat(logs, 3)[order], np.ones(90, np.int64))
    found = bootstrap(agents, np.repeat(np.arange(30), 3)[order], resamples=300)
    np.testing.assert_allclose(found, of_episodes, rtol=1e-9)
    assert bootstrap(agents, resamples=300).std < 0.7 * found.std
    assert bootstrap(agents, np.zeros(90, np.int64)) == (agents.value, agents.value, 0.0)


def test_resamples_without_weight_count_as_zero() -> None:
    terms = Terms(np.array([2.0, 0.0, 0.0]), np.array([0.0, -np.inf, -np.inf]), np.ones(3, np.int64))
    interval = bootstrap(terms, resamples=500)
    assert terms.value == 2.0
    assert 0.0 <= interval.low <= interval.high <= 2.0


@pytest.mark.parametrize("scale", [1e-300, 1e160, 1e300])
def test_the_interval_scales_with_the_estimate(scale: float) -> None:
    values = np.random.default_rng(0).lognormal(size=20)
    plain = np.array(bootstrap(mean_of(values), resamples=100))
    np.testing.assert_allclose(np.array(bootstrap(mean_of(values * scale), resamples=100)) / scale, plain, rtol=1e-9)


def test_an_estimate_beyond_float64_has_no_interval() -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(bootstrap(mean_of(np.full(4, 1.5e308)), resamples=10)).all()
