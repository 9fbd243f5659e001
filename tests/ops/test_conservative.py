"""The gaps of conservative Q-learning, against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import ShapeError
from rollax.models.distributions import MASKED_LOGIT
from rollax.ops.conservative import discrete_gap, multiplier_loss, sampled_gap
from tests.env.refused import raised
from tests.ops.test_actor_critic import array


class TestDiscrete:
    #  e^Q of each action   log of the sum   recorded       gap
    #     1  3  4                 ln 8           3       ln 8 - ln 3
    #     2  2  masked            ln 4           2       ln 2
    values = jnp.log(array(1, 3, 4, 2, 2, 1)).reshape(2, 3).at[1, 2].set(MASKED_LOGIT)
    taken = jnp.log(array(3, 2))

    def test_numbers(self):
        np.testing.assert_allclose(jax.jit(discrete_gap)(self.values, self.taken), np.log([8 / 3, 2]), rtol=1e-6)

    def test_gradient_is_the_difference_of_two_distributions(self):
        gradient = jax.jit(jax.grad(lambda v: discrete_gap(v, v[jnp.arange(2), jnp.array([1, 0])]).sum()))(self.values)
        np.testing.assert_allclose(gradient, [[1 / 8, 3 / 8 - 1, 1 / 2], [-1 / 2, 1 / 2, 0]], rtol=1e-5, atol=1e-7)


class TestSampled:
    def test_numbers(self):
        # Two critics, three samples, one row.  e^Q / μ: 1 / ½, 3 / 1, 5 / 5 = 2, 3, 1: log 6; and 4 / ½, 2 / 1, 10 / 5
        # = 8, 2, 2: log 12.  Less the recorded ones, log 3 and log 6.
        values = jnp.log(array(1, 3, 5, 4, 2, 10)).reshape(2, 1, 3)
        densities, taken = jnp.log(array(0.5, 1, 5)).reshape(1, 3), jnp.log(array(3, 6)).reshape(2, 1)
        np.testing.assert_allclose(jax.jit(sampled_gap)(values, densities, taken), np.log([[2], [2]]), rtol=1e-6)
        gradient = jax.jit(jax.grad(lambda v: sampled_gap(v, densities, taken).sum()))(values)[:, 0]
        np.testing.assert_allclose(gradient, [[2 / 6, 3 / 6, 1 / 6], [8 / 12, 2 / 12, 2 / 12]], rtol=1e-5)
        constant = jax.jit(jax.grad(lambda d: sampled_gap(values, d, taken).sum()))(densities)
        np.testing.assert_array_equal(constant, 0)

    def test_samples_of_any_density_estimate_one_integral(self):
        # Q(a) = 2a on [-1, 1]: log ∫ e^2a da = log(sinh 2), from uniform samples and from ones of density (1 + a) / 2.
        uniform = (np.arange(4000) + 0.5) / 4000
        for samples, densities in ((2 * uniform - 1, np.full(4000, 0.5)), (2 * np.sqrt(uniform) - 1, np.sqrt(uniform))):
            values = jnp.asarray(2 * samples, jnp.float32).reshape(1, 1, -1)
            logs = jnp.asarray(np.log(densities), jnp.float32).reshape(1, -1)
            found = sampled_gap(values, logs, jnp.zeros((1, 1))) - np.log(4000)
            np.testing.assert_allclose(found, np.log(np.sinh(2)), atol=3e-3)

    def test_shapes(self, own_checks):
        columns = jnp.zeros((2, 3, 4)), jnp.zeros((4, 3)), jnp.zeros((2, 4))
        raised(ShapeError, sampled_gap, *columns, says="sampled_gap")


class TestMultiplier:
    def test_a_gap_above_the_threshold_raises_the_weight(self):
        # α = 2; -2 (7 - 5) = -4; its gradient in log α is -4 too, so log α rises.
        loss = jax.jit(lambda x, gap: multiplier_loss(x, gap, threshold=5.0))
        log_alpha = jnp.log(jnp.float32(2))
        np.testing.assert_allclose(loss(log_alpha, jnp.float32(7)), (2, -4), rtol=1e-6)
        gradients = jax.jit(jax.grad(lambda x, gap: sum(loss(x, gap)), argnums=(0, 1)))(log_alpha, jnp.float32(7))
        np.testing.assert_allclose(gradients, (-4, 0), rtol=1e-6)

    def test_weight_is_bounded(self):
        np.testing.assert_allclose(multiplier_loss(jnp.float32(50), jnp.float32(0), threshold=0.0)[0], 1e6)
