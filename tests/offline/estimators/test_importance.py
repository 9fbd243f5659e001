"""Importance sampling and the doubly robust estimate, against numbers derived by hand."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax.offline.estimators import importance
from rollax.offline.estimators.importance import Terms
from rollax.offline.estimators.intervals import bootstrap

# Two episodes, of 2 and 1 steps, γ = 0.1:
#   episode  rewards  ratios π/μ  w_{0:t}
#      0      2, 3     0.5, 4     0.5, 2
#      1      5        3          3
#   returns 2 + 0.3 = 2.3 and 5
LENGTHS = np.array([2, 1])
REWARDS = np.array([2.0, 3.0, 5.0])
RATIOS = np.log([0.5, 4.0, 3.0])
WEIGHTS = importance.cumulative_log_weights(RATIOS, LENGTHS)
GAMMA = 0.1
ALL = [importance.importance_sampling, importance.per_decision, importance.weighted, importance.weighted_per_decision]


def test_weights_are_products_within_an_episode() -> None:
    np.testing.assert_allclose(np.exp(WEIGHTS), [0.5, 2.0, 3.0])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (importance.importance_sampling, (2 * 2.3 + 3 * 5) / 2),
        # 0.5 · 2 + 0.1 · 2 · 3 = 1.6, and 3 · 5 = 15
        (importance.per_decision, (1.6 + 15) / 2),
        (importance.weighted, (2 * 2.3 + 3 * 5) / (2 + 3)),
        # t = 0: (0.5 · 2 + 3 · 5) / 3.5;  t = 1: the second episode keeps its weight 3: 0.1 · 2 · 3 / (2 + 3)
        (importance.weighted_per_decision, 16 / 3.5 + 0.6 / 5),
    ],
)
def test_estimates(estimator, expected: float) -> None:
    assert estimator(REWARDS, WEIGHTS, LENGTHS, GAMMA).value == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ALL)
def test_the_same_policy_has_exactly_the_mean_return(estimator) -> None:
    assert estimator(REWARDS, np.zeros(3), LENGTHS, GAMMA).value == pytest.approx((2.3 + 5) / 2, rel=1e-12)


def test_doubly_robust() -> None:
    # Episode 0 is truncated, with V(s_2) = 7; episode 1 terminates.
    #   DR_1 = 1.5 + 4 (3 + 0.1 · 7 - 2) = 8.3;  DR_0 = 4 + 0.5 (2 + 0.1 · 8.3 - 1) = 4.915
    #   episode 1: 6 + 3 (5 - 8) = -3
    q, v = np.array([1.0, 2.0, 8.0]), np.array([4.0, 1.5, 6.0])
    terms = importance.doubly_robust(REWARDS, RATIOS, LENGTHS, GAMMA, q, v, np.array([7.0, 0.0]))
    np.testing.assert_allclose(terms.values, [4.915, -3.0])
    assert terms.value == pytest.approx((4.915 - 3) / 2)


def test_doubly_robust_without_values_is_per_decision() -> None:
    zeros = np.zeros(3)
    robust = importance.doubly_robust(REWARDS, RATIOS, LENGTHS, GAMMA, zeros, zeros, np.zeros(2))
    np.testing.assert_allclose(robust.values, importance.per_decision(REWARDS, WEIGHTS, LENGTHS, GAMMA).values)


def test_the_effective_sample_size() -> None:
    # (1 + 3)² / (1 + 9)
    assert importance.effective_sample_size(np.log([1.0, 3.0])) == pytest.approx(1.6)
    assert importance.effective_sample_size(np.full(7, -5000.0)) == pytest.approx(7)


@pytest.fixture(params=[1_000_000, 1], ids=["at once", "step by step"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(importance, "_CELLS_AT_ONCE", request.param)


@pytest.mark.usefixtures("blocks")
def test_leaving_out_and_weighting_episodes() -> None:
    # Weights 1, 2 and 4, 4, since the second episode has one step; weighted values 1, 2 and 3, 0.
    terms = Terms(np.array([1.0, 1.0, 0.75]), np.log([1.0, 2.0, 4.0]), LENGTHS)
    assert terms.value == pytest.approx(4 / 5 + 2 / 6)
    # Without episode 0: 3/4 + 0/4; without episode 1: 1/1 + 2/2. Episode 1 twice: 7/9 + 2/10.
    np.testing.assert_allclose(terms.without_each(np.arange(2)), [0.75, 2.0])
    np.testing.assert_allclose(terms.weighted(np.array([[1.0, 2.0], [1.0, 0.0]])), [7 / 9 + 0.2, 2.0])


@pytest.mark.usefixtures("blocks")
def test_weights_of_zero() -> None:
    # Episode 0 has weight 0 from its second step on.
    partly = importance.cumulative_log_weights(np.log([0.5, 1.0, 3.0]) - [0, np.inf, 0], LENGTHS)
    assert partly.tolist() == [np.log(0.5), -np.inf, np.log(3.0)]
    assert importance.weighted(REWARDS, partly, LENGTHS, GAMMA).value == 5
    assert importance.weighted_per_decision(REWARDS, partly, LENGTHS, GAMMA).value == pytest.approx(16 / 3.5)
    never = np.array([np.log(0.5), -np.inf, -np.inf])
    for estimator in (importance.weighted, importance.weighted_per_decision):
        terms = estimator(REWARDS, never, LENGTHS, GAMMA)
        assert np.isnan(terms.value)
        assert np.isnan(bootstrap(terms, resamples=10)).all()
    assert importance.importance_sampling(REWARDS, never, LENGTHS, GAMMA).value == 0
    assert importance.per_decision(REWARDS, never, LENGTHS, GAMMA).value == 0.5 * 2 / 2


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("gap", [40.0, 600.0, 800.0, 1e6])
def test_weights_that_differ_beyond_float64(gap: float) -> None:
    # Without episode 0, which has all of the weight, the others have weights in the ratio e², e, 1.
    returns, logs = np.array([-600.0, -500.0, -550.0, -580.0]), np.array([0.0, -gap, -gap - 1, -gap - 2])
    e2, e = np.exp(2.0), np.exp(1.0)
    without = -(500 * e2 + 550 * e + 580) / (e2 + e + 1)
    terms = importance.weighted(returns, logs, np.ones(4, np.int64), 1.0)
    np.testing.assert_allclose(terms.without_each(np.arange(4)), [without, -600, -600, -600])
    pairs = terms.without_each(np.array([0, 1, 0, 1]))
    np.testing.assert_allclose(pairs, [-(500 * e2 + 580) / (e2 + 1), -600])
    twice = -(2 * 500 * e2 + 550 * e + 580) / (2 * e2 + e + 1)
    counts = np.array([[1.0, 1, 1, 1], [0, 2, 1, 1], [0, 0, 0, 4]])
    np.testing.assert_allclose(terms.weighted(counts), [-600, twice, -580])
    interval = bootstrap(terms, resamples=200)
    assert -600 <= interval.low <= interval.high <= -500


def test_resamples_without_any_weight_are_left_out() -> None:
    # Episode 0 has weight 0: a resample of it alone has no estimate, all others give -5.
    terms = importance.weighted(np.array([7.0, -5.0]), np.array([-np.inf, 0.0]), np.ones(2, np.int64), 1.0)
    assert np.isnan(terms.weighted(np.array([[2.0, 0.0]])))
    assert bootstrap(terms, resamples=50) == (-5.0, -5.0, 0.0)


def test_weights_do_not_depend_on_the_episodes_before() -> None:
    lengths = np.array([1, 2, 3, 2])
    ratios = np.array([1e17, 0.1, 0.2, -1e17, 1e17, 0.5, 0.1, 0.2])
    found = importance.cumulative_log_weights(ratios, lengths)
    assert found.tolist() == [1e17, 0.1, 0.1 + 0.2, -1e17, 0.0, 0.5, 0.1, 0.1 + 0.2]


def test_memory_is_bounded_with_one_much_longer_episode() -> None:
    # A thousand episodes of one step and one of ten thousand: as a matrix, ten million cells of eight bytes.
    lengths = np.append(np.ones(1000, np.int64), 10_000)
    rewards, logs = np.ones(11_000), np.zeros(11_000)
    terms = importance.weighted_per_decision(rewards, logs, lengths, 1.0)
    tracemalloc.start()
    value = terms.value
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value == pytest.approx(11_000 / 1001)
    assert peak < 100e6


def test_weights_beyond_floats_cancel_out() -> None:
    far = WEIGHTS + np.array([0.0, 5000.0, 5000.0])
    shifted = importance.weighted(REWARDS, far, LENGTHS, GAMMA).value
    assert shifted == pytest.approx((2 * 2.3 + 3 * 5) / 5)


@given(st.data())
def test_weighted_estimates_lie_within_the_returns(data: st.DataObject) -> None:
    lengths = np.array(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    numbers = st.floats(-5, 5, width=32)
    rows = int(lengths.sum())
    rewards = np.array(data.draw(st.lists(numbers, min_size=rows, max_size=rows)))
    ratios = np.array(data.draw(st.lists(numbers, min_size=rows, max_size=rows)))
    logs = importance.cumulative_log_weights(ratios, lengths)
    returns = importance.discounted_returns(rewards, lengths, 0.9)
    value = importance.weighted(rewards, logs, lengths, 0.9).value
    assert returns.min() - 1e-6 <= value <= returns.max() + 1e-6
