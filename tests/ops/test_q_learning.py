"""Targets and losses of Q-learning against numbers derived by hand, and against rlax."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import ShapeError
from rollax.ops import q_learning
from rollax.ops.q_learning import categorical_cross_entropy, chosen, dueling, huber, projected, q_target, unscaled
from tests.env.refused import raised
from tests.ops.test_actor_critic import array


def test_chosen(wrap):
    table = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(wrap(chosen)(table, jnp.array([2, 0])), [2, 3])
    np.testing.assert_array_equal(wrap(chosen)(table, jnp.array([-1, 3])), [np.nan, np.nan])  # -1 was the last entry
    gradient = wrap(jax.grad(lambda values: chosen(values, jnp.array([-1, 1])).sum()))(table)
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [0, 1, 0]])


class TestQTarget:
    rewards, discounts = array(1, 2, 3), array(0.5, 0.5, 0)
    next_values = jnp.array([[1.0, 4.0], [6.0, 2.0], [8.0, 9.0]])

    def test_target_network_as_selector(self, wrap):
        # 1 + 0.5 * max(1, 4) = 3;  2 + 0.5 * 6 = 5;  the third has terminated: 3
        target = wrap(q_target)(self.rewards, self.discounts, self.next_values, self.next_values)
        np.testing.assert_allclose(target, [3, 5, 3])

    def test_double(self):
        # The other model prefers action 0, 1, 0: 1 + 0.5 * 1 = 1.5;  2 + 0.5 * 2 = 3;  3
        selector = jnp.array([[5.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
        np.testing.assert_allclose(q_target(self.rewards, self.discounts, self.next_values, selector), [1.5, 3, 3])

    def test_no_gradient(self):
        gradient = jax.jit(jax.grad(lambda v: q_target(self.rewards, self.discounts, v, v).sum()))(self.next_values)
        np.testing.assert_array_equal(gradient, np.zeros((3, 2)))

    def test_equals_rlax(self, rlax):
        rng = np.random.default_rng(0)
        rewards, discounts = rng.normal(size=(2, 7)).astype(np.float32)
        next_values, selector, values = rng.normal(size=(3, 7, 4)).astype(np.float32)

        @jax.jit
        def both(values, actions, rewards, discounts, next_values, selector):
            errors = jax.vmap(rlax.double_q_learning)(values, actions, rewards, discounts, next_values, selector)
            return q_target(rewards, discounts, next_values, selector) - chosen(values, actions), errors

        columns = values, rng.integers(4, size=7), rewards, discounts, next_values, selector
        np.testing.assert_allclose(*both(*columns), rtol=1e-5, atol=1e-6)

    def test_shapes(self, own_checks):
        raised(ShapeError, q_target, self.rewards, self.discounts[:2], self.next_values, self.next_values)
        raised(ShapeError, q_target, self.rewards, self.discounts, self.next_values, self.next_values[:, :1])


def test_huber(wrap):
    # inside ½ e²: ½ 0.25 = 0.125; at the border 0.5; outside 1 * (3 - 0.5) = 2.5
    np.testing.assert_allclose(wrap(huber)(array(-0.5, 1, 3)), [0.125, 0.5, 2.5])
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda e: huber(e[None])[0]))(array(-0.5, 1, 3)), [-0.5, 1, 1])
    # δ = 2: ½ 1 = 0.5; 2 * (3 - 1) = 4
    np.testing.assert_allclose(huber(array(1, -3), delta=2.0), [0.5, 4])


class TestProjected:
    support = array(0, 1, 2)

    def test_between_atoms(self, wrap):
        # row 0: r = 0.25, γ = 1: atoms at 0.25, 1.25, 2 (2.25 clipped). p = (.5, .5, 0):
        #   0.25 -> .75 to 0, .25 to 1; 1.25 -> .75 to 1, .25 to 2, each times .5: (.375, .5, .125)
        # row 1: terminated, r = 2: all on the last atom, for any p
        # row 2: r = -5: all on the first one
        probabilities = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
        result = wrap(projected)(probabilities, array(0.25, 2, -5), array(1, 0, 1), self.support)
        np.testing.assert_allclose(result, [[0.375, 0.5, 0.125], [0, 0, 1], [1, 0, 0]], atol=1e-7)

    def test_equals_rlax(self, rlax):
        rng = np.random.default_rng(1)
        support = jnp.linspace(-3, 5, 11)
        probabilities = rng.dirichlet(np.ones(11), size=6).astype(np.float32)
        rewards, discounts = np.float32([rng.normal(size=6), rng.random(6)])

        @jax.jit
        def both(probabilities, rewards, discounts):
            moved = rewards[:, None] + discounts[:, None] * support
            theirs = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(moved, probabilities, support)
            return projected(probabilities, rewards, discounts, support), theirs

        np.testing.assert_allclose(*both(probabilities, rewards, discounts), atol=1e-6)

    def test_mean_is_projected_exactly(self):
        # Inside the support nothing is clipped, so that E[r + γ Z] = r + γ E[Z].
        support = jnp.linspace(-10, 10, 51)
        probabilities = jnp.array(np.random.default_rng(2).dirichlet(np.ones(51), size=4), jnp.float32)
        rewards, discounts = array(1, -1, 0.5, 0), array(0.5, 0.3, 0.1, 0.7)
        mean = projected(probabilities, rewards, discounts, support) @ support
        np.testing.assert_allclose(mean, rewards + discounts * (probabilities @ support), rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize(("low", "high", "atoms"), [(-10, 10, 51), (-1000, 1000, 601), (-300, 300, 1001)])
    def test_no_probability_is_lost_at_the_last_atom(self, low, high, atoms):
        # A return of `high` or more is on the last atom, however inexact the atoms are in float32.
        support = np.linspace(low, high, atoms, dtype=np.float32)
        probabilities = jnp.full((2, atoms), 1 / atoms)
        result = projected(probabilities, array(high, 3 * high), array(0, 1), jnp.asarray(support))
        np.testing.assert_allclose(result, np.eye(atoms)[[-1, -1]], atol=1e-5)


def test_categorical_cross_entropy(wrap):
    # logits (0, ln 3): p = (¼, ¾). Row 0: -(½ ln ¼ + ½ ln ¾); row 1: -ln ¾
    logits = jnp.log(jnp.array([[1.0, 3.0], [1.0, 3.0]]))
    target = jnp.array([[0.5, 0.5], [0.0, 1.0]])
    expected = [-(np.log(0.25) + np.log(0.75)) / 2, -np.log(0.75)]
    np.testing.assert_allclose(wrap(categorical_cross_entropy)(target, logits), expected, rtol=1e-6)
    # its gradient is p - m
    gradient = jax.jit(jax.grad(lambda x: categorical_cross_entropy(target, x).sum()))(logits)
    np.testing.assert_allclose(gradient, [[-0.25, 0.25], [0.25, -0.25]], atol=1e-6)


def test_categorical_entropy(wrap):
    probabilities = jnp.array([[0.5, 0.5], [0.0, 1.0], [0.25, 0.75]])
    expected = [np.log(2), 0, np.log(4) - 0.75 * np.log(3)]
    np.testing.assert_allclose(wrap(q_learning.categorical_entropy)(probabilities), expected, rtol=1e-6, atol=1e-7)
    # It is the minimum of the cross-entropy with these probabilities.
    least = categorical_cross_entropy(probabilities[2:], jnp.log(probabilities[2:]))
    np.testing.assert_allclose(least, expected[2:], rtol=1e-6)


def test_quantile_huber(wrap):
    # M = 2: τ = ¼, ¾. Targets 1 and 5; errors u = y - θ, and |τ - 1{u < 0}| huber(u):
    #   row 0   θ = 0:  u = 1, 5:   ¼ · ½ = 0.125,  ¼ · 4.5 = 1.125
    #           θ = 2:  u = -1, 3:  ¼ · ½ = 0.125,  ¾ · 2.5 = 1.875      sum 3.25
    #   row 1   θ = 1:  u = 0, 4:   0,              ¼ · 3.5 = 0.875
    #           θ = 6:  u = -5, -1: ¼ · 4.5 = 1.125, ¼ · ½ = 0.125       sum 2.125
    quantiles, targets = array([0, 2], [1, 6]), array([1, 5], [1, 5])
    np.testing.assert_allclose(wrap(q_learning.quantile_huber)(quantiles, targets), [3.25 / 4, 2.125 / 4], rtol=1e-6)
    # By θ: -|τ - 1{u < 0}| clip(u, -1, 1) / 4. Row 0: -(¼ + ¼), ¼ - ¾; row 1: -(0 + ¼), ¼ + ¼.
    by_theta, by_y = jax.jit(jax.grad(lambda *args: q_learning.quantile_huber(*args).sum(), (0, 1)))(quantiles, targets)
    np.testing.assert_allclose(by_theta, array([-0.5, -0.5], [-0.25, 0.5]) / 4, rtol=1e-6)
    np.testing.assert_array_equal(by_y, 0)


def test_the_largest_quantiles_of_all_critics_together_are_dropped(wrap):
    # Two critics (N = 2), two rows, three quantiles (M = 3), d = 1: the two largest of each row's six. In row 0 both
    # are those of critic 1, in row 1 each critic has one.
    quantiles = array([[3, 1, 2], [9, 0, 5]], [[8, 4, 7], [6, 10, 1]])
    found = wrap(partial(q_learning.lowest_quantiles, dropped=1))(quantiles)
    np.testing.assert_array_equal(found, [[1, 2, 3, 4], [0, 1, 5, 6]])
    np.testing.assert_array_equal(q_learning.lowest_quantiles(quantiles, 0)[0], [1, 2, 3, 4, 7, 8])


def test_dueling(wrap):
    # row 0: 10 + (1, 2, 6) - 3 = (8, 9, 13); row 1: 1 + (0, 0, 3) - 1 = (0, 0, 3)
    advantages = jnp.array([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    np.testing.assert_allclose(wrap(dueling)(jnp.array([[10.0], [1.0]]), advantages), [[8, 9, 13], [0, 0, 3]])


def test_dueling_of_some_actions(wrap):
    # The mean is that of valid ones. row 0: 10 + (1, 2, 6) - (1 + 6)/2; row 1: 1 + (0, 0, 3) - 3
    advantages, valid = jnp.array([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]]), jnp.array([[1, 0, 1], [0, 0, 1]], bool)
    found = wrap(dueling)(jnp.array([[10.0], [1.0]]), advantages, valid)
    np.testing.assert_allclose(found, [[7.5, 8.5, 12.5], [-2, -2, 1]])


def test_the_distribution_with_the_smallest_mean():
    # Means over the atoms -1, 0, 1:  row 0: 0.5, -0.25;  row 1: 0, 0.75.
    first, second = [[0, 0.5, 0.5], [0.5, 0, 0.5]], [[0.25, 0.75, 0], [0, 0.25, 0.75]]
    probabilities, support = array(first, second), array(-1, 0, 1)
    np.testing.assert_array_equal(q_learning.lowest_distribution(probabilities, support), [second[0], first[1]])


def test_scaled_values():
    # h(3) = √4 - 1 + 0.003;  h(-8) = -(√9 - 1) - 0.008
    np.testing.assert_allclose(q_learning.rescaled(array(3, -8, 0), 1e-3), [1.003, -2.008, 0], rtol=1e-6)
    np.testing.assert_allclose(unscaled(array(1.003, -2.008, 0), 1e-3), [3, -8, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(unscaled(array(1, -2), 0.0), [3, -8], rtol=1e-6)
    # h'(x) = 1 / (2 √(|x| + 1)) + ε
    slopes = jax.vmap(jax.grad(q_learning.rescaled), in_axes=(0, None))(array(3, -8, 0), 1e-3)
    np.testing.assert_allclose(slopes, [1 / 4 + 1e-3, 1 / 6 + 1e-3, 1 / 2 + 1e-3], rtol=1e-6)


def test_errors_of_sequences():
    # η = ¾. Rows 3, -1 and one outside of the mask:  ¾ · 3 + ¼ · 2 = 2.75.  Rows -4 alone: 4.  None: 0.
    errors, mask = array(3, -1, 9, -4, 9, 9, 9, 9, 9), array(1, 1, 0, 1, 0, 0, 0, 0, 0)
    np.testing.assert_allclose(q_learning.sequence_errors(errors, mask, 3, eta=0.75), [2.75, 4, 0], rtol=1e-6)
    raised(ShapeError, q_learning.sequence_errors, errors, mask[:3], 3, eta=0.9)
