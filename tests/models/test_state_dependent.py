"""State-dependent Gaussians and their head, against numbers derived by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian
from rollax.models.distributions.state_dependent import StateDependentGaussian
from rollax.models.state_dependent_head import StateDependentHead
from tests.algorithms.tables import f32

PLAIN = StateDependentGaussian(DiagGaussian((2,)), 3)
# Means 1 and -2; features 1, 2, -1; σ of the features for number 0 and 1: (1, 2), (0.5, 1), (3, 0.1).
STD = f32(1, 2, 0.5, 1, 3, 0.1)
INPUTS = jnp.concatenate([f32(1, -2), f32(1, 2, -1), np.log(STD)])[None]
# Variances: 1·1 + 4·0.25 + 1·9 = 11, and 1·4 + 4·1 + 1·0.01 = 8.01.
VARIANCES = np.array([11, 8.01])


@pytest.mark.parametrize("jitted", [False, True])
def test_density_of_one_action(jitted):
    logp = jax.jit(PLAIN.logp) if jitted else PLAIN.logp
    # Both numbers are one standard deviation from their means.
    actions = f32(1, -2) + np.sqrt(VARIANCES).astype(np.float32)
    expected = -0.5 * (2 + np.log(VARIANCES).sum() + 2 * math.log(2 * math.pi))
    np.testing.assert_allclose(logp(INPUTS, jnp.asarray(actions)[None]), [expected], rtol=1e-5)
    entropy = 0.5 * (np.log(VARIANCES).sum() + 2 * math.log(2 * math.pi * math.e))
    np.testing.assert_allclose(PLAIN.entropy(INPUTS), [entropy], rtol=1e-5)
    np.testing.assert_allclose(PLAIN.kl(INPUTS, INPUTS), [0], atol=1e-6)
    np.testing.assert_array_equal(PLAIN.mode(INPUTS), [[1, -2]])


def test_explored_actions():
    # Numbers 0: 1·(1·1) + 2·(0.5·-1) - 1·(3·2) = -6; numbers 1: 1·(2·2) + 2·(1·0) - 1·(0.1·10) = 3.
    matrix = jnp.asarray([[1, 2, -1, 0, 2, 10]], jnp.float32)
    np.testing.assert_allclose(PLAIN.explored(INPUTS, matrix), [[-5, 1]], rtol=1e-5)
    squashed = StateDependentGaussian(SquashedGaussian((2,)), 3)
    np.testing.assert_allclose(squashed.explored(INPUTS, matrix), np.tanh([[-5, 1]]), rtol=1e-5)
    assert (squashed.bounded, PLAIN.bounded) == (True, False)


def test_explored_actions_have_this_density():
    matrices = np.random.default_rng(0).standard_normal((50_000, 6), np.float32)
    actions = np.asarray(PLAIN.explored(jnp.repeat(INPUTS, 50_000, axis=0), jnp.asarray(matrices)))
    np.testing.assert_allclose(actions.mean(axis=0), [1, -2], atol=0.05)
    np.testing.assert_allclose(actions.var(axis=0), VARIANCES, rtol=0.03)


def test_gradient():
    # ∂ log p / ∂ log σ_f = φ_f² σ_f² ((a - μ)² / v - 1) / v, here with (a - μ)² = 2 v.
    actions = f32(1, -2) + np.sqrt(2 * VARIANCES).astype(np.float32)
    gradient = jax.grad(lambda inputs: PLAIN.logp(inputs, jnp.asarray(actions)[None])[0])(INPUTS)
    shares = np.array([[1, 4], [1, 4], [9, 0.01]]) / VARIANCES
    np.testing.assert_allclose(gradient[0, 5:], shares.ravel(), rtol=1e-3)


@pytest.mark.parametrize("trains_features", [False, True])
def test_head(trains_features):
    head = StateDependentHead(PLAIN, log_std=-1.0, trains_features=trains_features, mean_limit=2.0, rngs=nnx.Rngs(0))
    head.means.bias[...] = jnp.asarray([5.0, 0.0])
    head.means.kernel[...] = jnp.zeros((3, 2))
    hidden = jnp.asarray([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(head(hidden), [[2, 0, 1, 2, 3, -1, -1, -1, -1, -1, -1]])
    gradient = jax.grad(lambda x: head(x)[:, 2:5].sum())(hidden)
    np.testing.assert_array_equal(gradient, np.full((1, 3), float(trains_features)))
