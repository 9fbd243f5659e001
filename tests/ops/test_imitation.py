"""Weights and losses of imitation, against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import ShapeError
from rollax.ops import imitation
from rollax.ops.imitation import advantage_weights, behaviour_regularized_loss, expectile_loss, squared_distances
from tests.env.refused import raised
from tests.ops.test_actor_critic import array


class TestWeights:
    advantages = array(0, 1, -2, 400)

    def test_numbers(self):
        # β = ½: e^0, e^0.5, e^-1, and e^200, which is limited to 100
        weights = jax.jit(lambda a: advantage_weights(a, beta=0.5, max_weight=100.0))(self.advantages)
        np.testing.assert_allclose(weights, [1, np.exp(0.5), np.exp(-1), 100], rtol=1e-6)

    def test_without_a_limit(self):
        np.testing.assert_allclose(advantage_weights(array(0, 30), beta=0.5), [1, np.exp(15)], rtol=1e-6)

    def test_beta_of_0_gives_equal_weights(self):
        np.testing.assert_array_equal(advantage_weights(self.advantages, beta=0.0), 1)

    def test_weights_are_constant(self):
        gradient = jax.jit(jax.grad(lambda a: advantage_weights(a, beta=0.5).sum()))(array(1, -2))
        np.testing.assert_array_equal(gradient, 0)


def test_the_moving_mean_square():
    # mean of 9, 1 (the third is padding): 5;  100 + ¼ (5 - 100) = 76.25
    moved = jax.jit(lambda c, a, m: imitation.moving_mean_square(c, a, m, rate=0.25))
    np.testing.assert_allclose(moved(jnp.float32(100), array(3, -1, 9e9), array(1, 1, 0)), 76.25)


class TestExpectile:
    #  u     |τ - 1{u<0}| at τ = 0.9    times u²     ∂/∂u = 2 |...| u, over 3 rows
    #  2            0.9                   3.6          3.6 / 3
    # -1            0.1                   0.1         -0.2 / 3
    #  0            0.9                   0            0
    #  7 (padding)
    errors, mask = array(2, -1, 0, 7), array(1, 1, 1, 0)

    def test_loss_and_gradient(self):
        loss = jax.jit(lambda u: expectile_loss(u, self.mask, expectile=0.9))
        np.testing.assert_allclose(loss(self.errors), 3.7 / 3, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(self.errors), [1.2, -0.2 / 3, 0, 0], rtol=1e-6)

    def test_minimum_is_the_expectile(self):
        # Of 0 and 1, equally likely: τ (1 - e) = (1 - τ) e, so e = τ.
        targets, mask = array(0, 1), array(1, 1)
        for expectile in (0.1, 0.5, 0.9):
            gradient = jax.grad(lambda e, tau=expectile: expectile_loss(targets - e, mask, expectile=tau))
            assert gradient(expectile - 0.01) < 0 < gradient(expectile + 0.01)


class TestBehaviourRegularized:
    def test_distances(self, own_checks):
        found = squared_distances(jnp.ones((2, 3, 1)), jnp.array([[[1.0], [0], [3]], [[1], [1], [-1]]]))
        np.testing.assert_allclose(found, [[0, 1, 4], [0, 0, 4]])
        raised(ShapeError, squared_distances, jnp.ones((2, 3)), jnp.ones((2, 1)), says="squared_distances")

    def test_loss_and_gradients(self):
        # mean |Q| of 4, -2 is 3 (the third row is padding): λ = 1.5 / 3 = ½. Loss: (5 - 2 + 1 + 1) / 2
        # ∂/∂Q = -½ / 2 rows, because λ is constant; ∂/∂distance = 1 / 2 rows
        values, distances, mask = array(4, -2, 9e9), array(5, 1, 9e9), array(1, 1, 0)
        loss = jax.jit(lambda v, d: behaviour_regularized_loss(v, d, mask, alpha=1.5))
        np.testing.assert_allclose(loss(values, distances), 2.5, rtol=1e-6)
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(values, distances)
        np.testing.assert_allclose(gradients[0], [-0.25, -0.25, 0], rtol=1e-6)
        np.testing.assert_allclose(gradients[1], [0.5, 0.5, 0], rtol=1e-6)

    def test_values_of_0(self):
        assert np.isfinite(behaviour_regularized_loss(array(0, 0), array(1, 3), array(1, 1), alpha=2.5))
