"""Targets and losses of actors and critics, against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import ShapeError
from rollax.ops import actor_critic
from rollax.ops.actor_critic import entropy_of_normals, reward_scale, smoothed_actions, td_target, twin_errors
from tests.env.refused import raised


def array(*numbers):
    return jnp.array(numbers, jnp.float32)


class TestTarget:
    rewards, discounts, values = array(1, 2, 3), array(0.5, 0.0, 0.25), array(4, 8, -4)

    def test_numbers(self):
        # 1 + 4/2, 2 + 0 (terminated), 3 - 4/4
        np.testing.assert_allclose(jax.jit(td_target)(self.rewards, self.discounts, self.values), [3, 2, 2])

    def test_is_constant(self):
        gradient = jax.jit(jax.grad(lambda v: td_target(self.rewards, self.discounts, v).sum()))(self.values)
        np.testing.assert_array_equal(gradient, 0)

    def test_shapes(self, own_checks):
        raised(ShapeError, td_target, self.rewards, self.discounts, array(1, 2), says="td_target")


def test_smoothed_actions(own_checks):
    #  action   σ ε    cut to ±0.5   sum   cut to ±1
    #   0.0     0.2       0.2        0.2     0.2
    #   0.9     0.4       0.4        1.3     1.0
    #  -0.9    -2.0      -0.5       -1.4    -1.0
    #   0.3     3.0       0.5        0.8     0.8
    actions, noise = array(0, 0.9, -0.9, 0.3).reshape(2, 2), array(1, 2, -10, 15).reshape(2, 2)
    smoothed = jax.jit(lambda a, e: smoothed_actions(a, e, scale=0.2, limit=0.5))(actions, noise)
    np.testing.assert_allclose(smoothed, [[0.2, 1.0], [-1.0, 0.8]], rtol=1e-6)
    raised(ShapeError, smoothed_actions, actions, noise[:1], says="smoothed_actions", scale=0.2, limit=0.5)


class TestTwinErrors:
    #            row 0   row 1   row 2 (padding)
    #  target      1       2       9
    #  Q_1         3       2       9e9          errors  2,  0
    #  Q_2         0       5       9e9          errors -1,  3
    #  weight      1      1/2
    #  squares  4+1=5   0+9=9, by weight 5, 4.5: mean 4.75
    #  sizes    1.5     1.5
    values, targets = array(3, 2, 9e9, 0, 5, 9e9).reshape(2, 3), array(1, 2, 9)
    weights, mask = array(1, 0.5, 7), array(1, 1, 0)

    def test_numbers(self):
        loss, errors = jax.jit(twin_errors)(self.values, self.targets, self.weights, self.mask)
        np.testing.assert_allclose(loss, 4.75)
        np.testing.assert_allclose(errors[:2], [1.5, 1.5])

    def test_gradients(self):
        # 2 w e / 2 rows
        gradient = jax.grad(lambda v, t: twin_errors(v, t, self.weights, self.mask)[0], (0, 1))
        by_values, by_targets = jax.jit(gradient)(self.values, self.targets)
        np.testing.assert_allclose(by_values, [[2, 0, 0], [-1, 1.5, 0]])
        np.testing.assert_array_equal(by_targets, 0)


def test_temperature_loss():
    # log π + H̄: -1 + 0.5, 2 + 0.5; padding. Mean 1, so the loss is -log α, and its gradient -1: α rises.
    logp, target, mask = array(-1, 2, 9), array(0.5, 0.5, 0.5), array(1, 1, 0)

    def loss(log_alpha, logp):
        return actor_critic.temperature_loss(log_alpha, logp, target, mask)

    np.testing.assert_allclose(loss(jnp.float32(3), logp), -3)
    by_alpha, by_logp = jax.jit(jax.grad(loss, (0, 1)))(jnp.float32(3), logp)
    np.testing.assert_allclose(by_alpha, -1)
    np.testing.assert_array_equal(by_logp, 0)


def test_the_entropy_of_normals():
    # ½ log(2πe σ²) each: 1.418939 + log σ. At σ = 0.15 it is -0.478181.
    np.testing.assert_allclose(entropy_of_normals(1.0, 1), 1.418939, rtol=1e-6)
    np.testing.assert_allclose(entropy_of_normals(0.15, 6), 6 * -0.478181, rtol=1e-5)


def test_reward_scale():
    # The deviation 3, or 20 / 5 = 4; never 0.
    for deviation, largest, expected in ((3, 10, 3), (3, 20, 4), (0, 0, 1e-8)):
        np.testing.assert_allclose(reward_scale(*array(deviation, largest), limit=5.0), expected, rtol=1e-6)
