"""Random search of a vector: weights and steps by hand, and problems with known solutions."""

import pickle
from dataclasses import replace

import numpy as np
import optax
import pytest
import scipy.linalg

from rollax.errors import ConfigError, NonFiniteError, ShapeError
from rollax.ops import evolution
from rollax.ops.evolution import ars_weights, ask, centered_ranks, direction, es_weights, start_search, tell
from tests.env.refused import raised


class TestRanks:
    def test_by_hand(self):
        # 5 numbers: places 0 1 2 3 4 -> -1/2 -1/4 0 1/4 1/2
        np.testing.assert_array_equal(centered_ranks(np.array([3.0, -7, 10, 0, 4])), [0, -0.5, 0.5, -0.25, 0.25])

    def test_equal_numbers_share_the_mean_of_their_ranks(self):
        # sorted: 1 2 2 2 5; the three 2s have the places 1, 2, 3, so 2 each.
        np.testing.assert_array_equal(centered_ranks(np.array([2.0, 5, 2, 1, 2])), [0, 0.5, 0, -0.5, 0])
        # sorted: 1 1 4 4: places 0.5 and 2.5 of 0 to 3.
        np.testing.assert_allclose(centered_ranks(np.array([[4.0, 1], [1, 4]])), [[1 / 3, -1 / 3], [-1 / 3, 1 / 3]])

    def test_nan_is_worst(self):
        np.testing.assert_array_equal(centered_ranks(np.array([np.nan, -9.0, 1.0])), [-0.5, 0, 0.5])

    def test_infinite_values_are_as_bad_as_nan(self):
        # places of the three: 0 1 2, so 1 each; of the numbers: 3 and 4. Of 4, minus 1/2.
        values = np.array([np.nan, -np.inf, 1.0, np.inf, -9.0])
        np.testing.assert_array_equal(centered_ranks(values), [-0.25, -0.25, 0.5, -0.25, 0.25])

    def test_sum_of_ranks_is_zero(self):
        values = np.random.default_rng(0).integers(0, 5, 40).astype(float)
        assert centered_ranks(values).sum() == pytest.approx(0, abs=1e-12)


class TestESWeights:
    def test_values_that_differ_by_rounding_are_ties(self):
        # Sums of the same rewards in another order.
        sums = np.array([[0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], [0.1 + 0.3 + 0.2, 0.6]]) * 10
        assert len(np.unique(sums)) > 1
        np.testing.assert_array_equal(centered_ranks(sums), np.zeros((2, 2)))
        np.testing.assert_array_equal(ars_weights(sums), [0, 0])
        assert np.ptp(centered_ranks(np.array([1.0, 1 + 1e-9]))) == 1  # more than rounding
        outlier = np.array([[1.0, 2], [3, 4], [5, -1e30]])  # must not turn the others into ties
        np.testing.assert_allclose(centered_ranks(outlier), np.array([[-3, -1], [1, 3], [5, -5]]) / 10)

    def test_by_hand(self):
        # returns  6 1 | 2 9 | 4 4;  sorted 1 2 4 4 6 9: ranks 0 1 2.5 2.5 4 5, of 5, minus 1/2
        #   ranks        0.3 -0.5 | -0.3 0.5 | 0 0;   differences 0.8, -0.8, 0;   divided by 2N = 6
        returns = np.array([[6.0, 1], [2, 9], [4, 4]])
        np.testing.assert_allclose(es_weights(returns), [0.8 / 6, -0.8 / 6, 0])
        np.testing.assert_allclose(es_weights(returns, "identity"), [5 / 6, -7 / 6, 0])
        np.testing.assert_allclose(es_weights(returns, "centered_sign_rank"), es_weights(returns))
        np.testing.assert_allclose(es_weights(returns, "sign"), es_weights(returns, "identity"))

    def test_equal_returns_have_no_weight(self):
        np.testing.assert_array_equal(es_weights(np.full((4, 2), 3.0)), np.zeros(4))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_returns_that_are_not_finite(self, bad):
        returns = np.array([[6.0, 1], [2, bad], [bad, bad], [4, 3]])
        # differences 5, -, -, 1, divided by 2N = 8
        for shaping in ("identity", "sign"):
            np.testing.assert_array_equal(es_weights(returns, shaping), [5 / 8, 0, 0, 1 / 8])
        # sorted: three bad ones 1 2 3 4 6: ranks 1 1 1 3 4 5 6 7 of 7
        #   6 1 | 2 - | - - | 4 3   ranks 7 3 | 4 1 | 1 1 | 6 5, differences 4 3 0 1
        np.testing.assert_allclose(es_weights(returns), np.array([4, 3, 0, 1]) / 7 / 8)

    @pytest.mark.parametrize("shaping", ["centered_rank", "identity"])
    def test_swapped_sides_change_the_sign(self, shaping):
        returns = np.random.default_rng(0).standard_normal((7, 2))
        np.testing.assert_array_equal(es_weights(returns[:, ::-1], shaping), -es_weights(returns, shaping))

    @pytest.mark.parametrize("wrong", [np.zeros(4), np.zeros((4, 3)), np.zeros((0, 2))])
    def test_wrong_shapes_are_refused(self, wrong):
        for weights in (es_weights, ars_weights):
            raised(ShapeError, weights, wrong, says="(N, 2)")


class TestARSWeights:
    RETURNS = np.array([[1.0, 3], [8, 0], [2, 2], [-5, 4]])

    def test_by_hand(self):
        # maxima 3 8 2 4: the best two are directions 1 and 3. Their returns 8 0 -5 4 have the mean 7/4 and the
        # variance (64 + 0 + 25 + 16) / 4 - 49/16 = 371/16. The differences are 8 and -9.
        deviation = np.sqrt(371) / 4
        np.testing.assert_allclose(ars_weights(self.RETURNS, 2), [0, 8 / (2 * deviation), 0, -9 / (2 * deviation)])

    def test_all_by_default(self):
        deviation = self.RETURNS.std()
        np.testing.assert_allclose(ars_weights(self.RETURNS), np.array([-2, 8, 0, -9]) / (4 * deviation))

    def test_one_direction(self):
        # The population's deviation of two numbers is half of their distance: the weight is always ±2.
        assert ars_weights(np.array([[10.0, 4]])) == [2]
        assert ars_weights(np.array([[4.0, 4.25]])) == [-2]

    def test_equal_returns_have_no_weight(self):
        np.testing.assert_array_equal(ars_weights(np.full((3, 2), -1.0)), np.zeros(3))

    def test_swapped_sides_change_the_sign(self):
        np.testing.assert_array_equal(ars_weights(self.RETURNS[:, ::-1], 3), -ars_weights(self.RETURNS, 3))

    def test_the_first_of_equal_directions_is_used(self):
        assert np.flatnonzero(ars_weights(np.array([[1.0, 2], [5, 0], [0, 5], [5, 1]]), 2)).tolist() == [1, 2]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_directions_that_are_not_finite_are_not_used(self, bad):
        weights = ars_weights(np.array([[bad, 100], [1, 3], [6, 2]]), 2)
        np.testing.assert_allclose(weights, np.array([0, -2, 4]) / (2 * np.std([1, 3, 6, 2])))
        np.testing.assert_array_equal(ars_weights(np.full((2, 2), bad)), 0)

    def test_all_directions_but_an_infinite_one(self):
        # The returns 1 2 0 5 have the mean 2 and the variance 14/4; b = 2.
        weights = ars_weights(np.array([[1, 2], [3, -np.inf], [0, 5]]))
        np.testing.assert_allclose(weights, np.array([-1, 0, -5]) / (2 * np.sqrt(3.5)))

    def test_returns_whose_squares_overflow(self):
        # A penalty of -3e200 beside 1e200: mean -1e200, deviation 2e200; 1e-200 and 0: deviation 5e-201.
        np.testing.assert_allclose(ars_weights(np.array([[1e200, -3e200]])), [2])
        np.testing.assert_allclose(ars_weights(np.array([[0, 1e-200]])), [-2])
        # Returns 1 1 -1 -1 times 1e308: deviation 1e308; the differences 2e308 of the first two would be infinite.
        np.testing.assert_allclose(ars_weights(1e308 * np.array([[1.0, -1], [1, -1]])), [1, 1])


class TestDirections:
    def test_directions_depend_on_their_numbers(self):
        first = direction(3, 5, 7, 100)
        np.testing.assert_array_equal(direction(3, 5, 7, 100), first)
        np.testing.assert_array_equal(direction(3, 5, 7, 40), first[:40])
        others = [direction(4, 5, 7, 100), direction(3, 6, 7, 100), direction(3, 5, 8, 100), direction(3, 7, 5, 100)]
        for other in [*others, evolution.action_stream(3, 5, 7, 0).standard_normal(100, np.float32)]:
            assert abs(np.corrcoef(first, other)[0, 1]) < 0.35  # 3.5 deviations of independent ones
        assert first.dtype == np.float32

    def test_standard_normal(self):
        numbers = np.concatenate([direction(0, 0, k, 1000) for k in range(100)])
        assert numbers.mean() == pytest.approx(0, abs=0.015)  # 5 deviations
        assert numbers.std() == pytest.approx(1, abs=0.012)

    def test_the_noise_of_actions_differs_by_episode(self):
        noise = [evolution.action_stream(0, 1, 2, part).standard_normal(3).tolist() for part in range(3)]
        assert len({tuple(numbers) for numbers in noise}) == 3

    def test_seeds_of_episodes(self):
        seeds = {evolution.episode_seed(*ids) for ids in np.ndindex(3, 3, 3, 3)}
        assert len(seeds) == 81
        assert max(seeds) < 2**31
        assert min(seeds) >= 0

    def test_a_large_seed(self):
        assert not np.array_equal(direction(2**100, 0, 0, 5), direction(2**100 + 1, 0, 0, 5))

    def test_weighted_sum_of_directions(self):
        expected = 2 * direction(0, 4, 1, 3).astype(np.float64) - 3 * direction(0, 4, 2, 3)
        np.testing.assert_array_equal(
            evolution.gradient_estimate(np.array([0.0, 2, -3]), 0, 4, 3), expected.astype(np.float32)
        )


SMALL = {"num_directions": 2, "noise_stdev": 0.1, "lr": 0.1}


class TestSearch:
    def test_candidates(self):
        search = start_search([1.0, 2.0], num_directions=3, noise_stdev=0.5, lr=0.1, seed=9)
        candidates = ask(search)
        assert candidates.shape == (3, 2, 2)
        np.testing.assert_allclose(candidates.mean(axis=1), [[1, 2]] * 3, rtol=1e-6)
        np.testing.assert_array_equal(candidates[2, 0], np.float32([1, 2]) + np.float32(0.5) * direction(9, 0, 2, 2))
        after = tell(search, np.zeros((3, 2)))
        assert (after.generation, search.generation) == (1, 0)
        assert not np.array_equal(ask(after), candidates)

    def test_a_step_by_hand(self):
        # One direction ε, returns 5 and 3: ARS moves θ by α 2 ε, ES with identity by α (5 - 3) / 2 ε.
        epsilon, theta = direction(0, 0, 0, 4).astype(np.float64), np.array([0.5, -1, 2, 0])
        settings = {"num_directions": 1, "noise_stdev": 0.1, "lr": 0.25}
        ars = tell(start_search(theta, **settings), [[5.0, 3]])
        np.testing.assert_allclose(ars.theta, theta + 0.25 * 2 * epsilon, rtol=1e-6)
        es = start_search(theta, **settings, weights=lambda r: es_weights(r, "identity"), l2_coeff=0.5)
        np.testing.assert_allclose(tell(es, [[5.0, 3]]).theta, theta + 0.25 * (epsilon - 0.5 * theta), rtol=1e-6)

    def test_equal_returns_change_theta_by_weight_decay_only(self):
        settings = {"num_directions": 4, "noise_stdev": 0.1, "lr": 0.5, "weights": es_weights}
        still = tell(start_search([1.0, -2], **settings), np.full((4, 2), 7.0))
        np.testing.assert_array_equal(still.theta, [1, -2])
        decayed = tell(start_search([1.0, -2], **settings, l2_coeff=0.1), np.full((4, 2), 7.0))
        np.testing.assert_allclose(decayed.theta, [0.95, -1.9], rtol=1e-6)

    @pytest.mark.long
    def test_the_estimate_of_a_linear_function_is_its_gradient(self):
        # f = aᵀθ: (f(θ + σε) - f(θ - σε)) / 2N ε = σ (aᵀε) ε / N, whose expectation is σ a: the factor 1/σ is left out.
        a, sigma, count = np.array([1.0, -2, 0.5]), 0.3, 8_000
        search = start_search(np.ones(3), num_directions=count, noise_stdev=sigma, lr=1.0)
        weights = es_weights(ask(search).astype(np.float64) @ a, "identity")
        # The deviation of (aᵀε) ε_i is at most √(|a|² + a_i²) = 3.1: 3 deviations of the mean are 0.11.
        np.testing.assert_allclose(evolution.gradient_estimate(weights, 0, 0, 3) / sigma, a, atol=0.11)

    @pytest.mark.parametrize(
        "settings", [{}, {"weights": es_weights, "optimizer": optax.scale_by_adam()}], ids=["ARS", "ES"]
    )
    def test_the_maximum_of_a_quadratic_function(self, settings):
        target = np.array([1.0, -2, 3, 0.5])
        search = start_search(np.zeros(4), num_directions=20, noise_stdev=0.1, lr=0.1, **settings)
        for _ in range(60):
            search = tell(search, -((ask(search) - target) ** 2).sum(axis=-1))
        np.testing.assert_allclose(search.theta, target, atol=0.3)

    def test_wrong_arguments(self):
        search = start_search([0.0], **SMALL)
        raised(ShapeError, tell, search, np.zeros((3, 2)), says="(3, 2)...(2, 2)")
        raised(ShapeError, start_search, [[0.0]], says="not a vector", **SMALL)
        for used in (0, -1, 4):
            raised(ConfigError, ars_weights, np.ones((3, 2)), used, says="ars_weights(used)")

    def test_an_optimizer_that_includes_a_learning_rate_is_refused(self):
        with pytest.raises(ConfigError, match=r"minimize the returns(.|\n)*a step of -0.1 for(.|\n)*scale_by_adam\(\)"):
            start_search([5.0, 1.0], **SMALL, optimizer=optax.adam(0.1))
        for optimizer in (optax.trace(0.9), optax.chain(optax.add_decayed_weights(0.1), optax.scale_by_rms())):
            start_search([-5.0, 1.0], **SMALL, optimizer=optimizer)

    def test_a_search_continues_from_its_stored_parts(self):
        settings = {"num_directions": 4, "noise_stdev": 0.1, "lr": 0.1}
        settings |= {"weights": es_weights, "optimizer": optax.scale_by_adam(), "seed": 3}
        search = start_search([1.0, -2], **settings)
        for _ in range(3):
            search = tell(search, -(ask(search) ** 2).sum(axis=-1))
        stored = pickle.dumps((search.theta, search.optimizer_state, search.generation))
        theta, optimizer_state, generation = pickle.loads(stored)  # noqa: S301
        resumed = replace(start_search(theta, **settings), optimizer_state=optimizer_state, generation=generation)
        after, expected = (tell(one, -(ask(one) ** 2).sum(axis=-1)) for one in (resumed, search))
        np.testing.assert_array_equal(after.theta, expected.theta)

    def test_returns_that_are_not_finite(self):
        search = start_search([0.0], **SMALL)
        raised(NonFiniteError, tell, search, [[np.nan, np.inf], [-np.inf, np.nan]], says="generation 0...nan")
        moved = [tell(search, returns).theta for returns in ([[np.nan, np.inf], [1.0, 2.0]], [[None, None], [1, 2]])]
        assert moved[0] == moved[1] != 0

    def test_weights_that_make_no_step(self):
        with pytest.raises(ShapeError, match=r"\(1,\)(.|\n)*\(2,\)"):
            tell(start_search([0.0], **SMALL, weights=lambda r: r[:1, 0]), np.ones((2, 2)))
        with pytest.raises(NonFiniteError, match=r"not finite(.|\n)*generation 0"):
            tell(start_search([0.0], **SMALL, weights=lambda r: r[:, 0] * np.nan), np.ones((2, 2)))


@pytest.mark.long
def test_a_linear_quadratic_regulator():
    """ARS finds the gains of the Riccati equation."""
    # x' = A x + B u, cost Σ x'x + u'u over 60 steps from each unit vector; u = -K x.
    a, b = np.array([[1.01, 0.1], [0.0, 1.01]]), np.array([[0.0], [0.1]])
    riccati = scipy.linalg.solve_discrete_are(a, b, np.eye(2), np.eye(1))
    best = np.linalg.solve(np.eye(1) + b.T @ riccati @ b, b.T @ riccati @ a).ravel()

    def costs(gains):
        x = np.broadcast_to(np.eye(2), (*gains.shape[:-1], 2, 2))
        total = np.zeros(gains.shape[:-1])
        for _ in range(60):
            u = -(x * gains[..., None, :]).sum(axis=-1, keepdims=True)
            total += (x**2).sum(axis=(-1, -2)) + (u**2).sum(axis=(-1, -2))
            x = x @ a.T + u @ b.T
        return np.minimum(total, 1e6)

    search = start_search(np.zeros(2), num_directions=8, noise_stdev=0.05, lr=0.1)
    for step in range(300):
        search = tell(search, -costs(ask(search).astype(np.float64)))
        if step == 200:
            search = start_search(search.theta, num_directions=8, noise_stdev=0.02, lr=0.005, seed=1)
    found, optimum = costs(search.theta.astype(np.float64)), costs(best)
    assert found <= optimum * 1.001
    np.testing.assert_allclose(search.theta, best, atol=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"num_directions": 0}, {"noise_stdev": -1.0}, {"noise_stdev": np.inf}, {"lr": 0.0}, {"lr": np.nan}),
        *({"l2_coeff": -0.1}, {"l2_coeff": np.nan}, {"theta": [np.nan]}, {"seed": -1}),
    ],
)
def test_invalid_starts_are_refused(wrong):
    raised(ConfigError, start_search, says=f"start_search({next(iter(wrong))})", **{"theta": [0.0], **SMALL, **wrong})
