"""The value loss and the explained variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import ShapeError
from rollax.ops.values import explained_variance, value_loss


def test_value_loss(wrap):
    #   row   V    G   (V - G)²   min(·, 10)   gradient 2 (V - G)/3
    #    0    1    3       4           4           -4/3
    #    1    5    1      16          10            0     the limit binds
    #    2    2    2       0           0            0
    #    3    9    0       –           –            –     padding
    values, targets = jnp.array([1.0, 5.0, 2.0, 9.0]), jnp.array([3.0, 1.0, 2.0, jnp.nan])
    mask = jnp.array([1.0, 1.0, 1.0, 0.0])
    limited = jax.value_and_grad(lambda *columns: value_loss(*columns, vf_clip_param=10.0), argnums=(0, 1))
    value, gradients = wrap(limited)(values, targets, mask)
    assert value == pytest.approx(14 / 3)
    np.testing.assert_allclose(gradients[0], [-4 / 3, 0, 0, 0], rtol=1e-6)
    assert (gradients[1] == 0).all()
    value, gradient = wrap(jax.value_and_grad(value_loss))(values, targets, mask)
    assert value == pytest.approx(20 / 3)
    np.testing.assert_allclose(gradient, [-4 / 3, 8 / 3, 0, 0], rtol=1e-6)
    # Importance weights: ½ · 4 + 2 · min(16, 10).
    value = wrap(lambda w: value_loss(values, targets, mask, vf_clip_param=10.0, weights=w))(jnp.array([0.5, 2, 1, 1]))
    assert value == pytest.approx(22 / 3)


def test_explained_variance(wrap):
    # Targets 1 2 3 6: mean 3, variance (4 + 1 + 0 + 9)/4 = 3.5. Errors 1 -1 1 -1: mean 0, variance 1. 1 - 1/3.5 = 5/7.
    targets, predictions = jnp.array([1.0, 2.0, 3.0, 6.0, 99.0]), jnp.array([0.0, 3.0, 2.0, 7.0, jnp.nan])
    mask = jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
    ev = wrap(explained_variance)
    assert ev(targets, predictions, mask) == pytest.approx(5 / 7)
    assert ev(targets, targets + 8, mask) == pytest.approx(1)
    assert ev(targets, jnp.full(5, 4.0), mask) == pytest.approx(0)
    # Predictions of the wrong sign: errors 2G, variance 4 · 3.5, so 1 - 4.
    assert ev(targets, -targets, mask) == pytest.approx(-3)


def test_explained_variance_of_constant_targets(wrap):
    # The mean of a thousand 0.1 is not exactly 0.1 in float32: rounding must not count as variance.
    constant, mask = jnp.full(1000, 0.1), jnp.ones(1000)
    other = jnp.arange(1000) / 1000
    ev = wrap(explained_variance)
    assert ev(constant, constant + 5.3, mask) == 1
    assert ev(constant, other, mask) == 0
    assert ev(0 * constant, 0 * constant, mask) == 1
    assert ev(0 * constant, other, mask) == 0
    assert ev(constant, other, 0 * mask) == 1


def test_several_value_heads(wrap):
    # Squared errors 4, 16, 9 in head 0 and 1, 0, 4 in head 1, of which the third row is padding: 20/2 + 1/2. Bounded
    # by 10: 14/2 + 1/2. The gradients of head 0 are 2 (V - G) / 2, without the bounded row.
    values, targets = jnp.array([[1.0, 1], [5, 2], [9, 3]]), jnp.array([[3.0, 2], [1, 2], [6, 5]])
    mask = jnp.array([1.0, 1.0, 0.0])
    assert wrap(value_loss)(values, targets, mask) == pytest.approx(10.5)
    limited = jax.value_and_grad(lambda values: value_loss(values, targets, mask, vf_clip_param=10.0))
    value, gradient = wrap(limited)(values)
    assert value == pytest.approx(7.5)
    np.testing.assert_allclose(gradient, [[-2, -1], [0, 0], [0, 0]], rtol=1e-6)
    # Head 0: targets 3 1, errors 2 -4: 1 - 9/1. Head 1: constant targets, errors 1 0: 0.
    assert wrap(explained_variance)(targets, values, mask) == pytest.approx(-4)


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 1)])
@pytest.mark.parametrize("place", range(3))
def test_wrong_shapes_raise(shape, place, own_checks):
    columns = [jnp.ones(4)] * 3
    columns[place] = jnp.ones(shape)
    for f in (value_loss, explained_variance):
        with pytest.raises(ShapeError, match=rf"(?s)where: +{f.__name__}.*got:.*expected:"):
            f(*columns)
