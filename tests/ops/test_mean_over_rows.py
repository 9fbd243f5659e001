"""masked_mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import ShapeError
from rollax.ops.mean_over_rows import masked_mean


def test_masked_mean(wrap):
    mean = wrap(masked_mean)
    x = jnp.array([[1.0, 2.0, 30.0], [4.0, 50.0, 60.0]])
    mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    # (1 + 2 + 4) / 3; each valid entry has a gradient of 1/3.
    assert mean(x, mask) == pytest.approx(7 / 3)
    np.testing.assert_allclose(jax.grad(mean)(x, mask), mask / 3)


def test_padding_may_contain_any_number():
    x, mask = jnp.array([1.0, jnp.nan, jnp.inf, 2.0]), jnp.array([1.0, 0.0, 0.0, 1.0])
    assert masked_mean(x, mask) == 1.5
    assert jax.grad(masked_mean)(x, mask).tolist() == [0.5, 0, 0, 0.5]


def test_no_valid_entry_gives_zero_without_gradient():
    x, mask = jnp.array([1.0, 2.0]), jnp.zeros(2)
    assert masked_mean(x, mask) == 0
    assert jax.grad(masked_mean)(x, mask).tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 1), (1, 4), ()])
def test_wrong_shape_raises(shape, own_checks):
    with pytest.raises(ShapeError, match=r"(?s)x \(4,\), mask.*expected:"):
        masked_mean(jnp.ones(4), jnp.ones(shape))
    with pytest.raises(ValueError, match="differ in shape"):
        jax.jit(masked_mean)(jnp.ones(4), jnp.ones(shape))
