"""Advantages in JAX: by hand, and equal to those in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax.batch import Fragment
from rollax.ops.advantages import generalized_advantages, standardized
from rollax.ops.values import traced_advantages, traced_standardized


def test_by_hand():
    """γ = 0.5, λ = 0.5: an episode terminates with the second of four steps, another is cut after the fourth."""
    rewards = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    values = np.array([[10.0, 20.0, 30.0, 40.0]], np.float32)
    next_values = np.array([[20.0, 99.0, 40.0, 8.0]], np.float32)
    terminated = np.array([[False, True, False, False]])
    columns = map(jnp.asarray, (rewards, values, next_values, terminated, terminated))
    advantages, targets = traced_advantages(*columns, gamma=0.5, lambda_=0.5)
    # δ = 1 + 10 - 10 = 1, 2 - 20 = -18, 3 + 20 - 30 = -7, 4 + 4 - 40 = -32
    expected = np.array([[1 - 18 / 4, -18.0, -7 - 32 / 4, -32.0]])
    np.testing.assert_allclose(advantages, expected)
    np.testing.assert_allclose(targets, expected + values)


@pytest.mark.long
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 20), st.sampled_from([0.0, 0.9, 1.0]))
def test_equal_to_those_on_the_host(seed, rows, steps, lambda_):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, rows, steps)).astype(np.float32)
    terminated, truncated = rng.random((2, rows, steps)) < 0.2
    over = terminated | truncated
    # Inside of an episode the value after a step is that of the next row.
    next_values[:, :-1] = np.where(over[:, :-1], next_values[:, :-1], values[:, 1:])
    arrays = map(jnp.asarray, (rewards, values, next_values, terminated, over))
    found = traced_advantages(*arrays, gamma=0.9, lambda_=lambda_)
    cut = over.copy()
    cut[:, -1] = True
    ends = np.flatnonzero(cut)
    columns = {"rewards": rewards.ravel(), "vf_preds": values.ravel(), "terminateds": terminated.ravel()}
    fragment = Fragment(columns, ends, {})
    expected = generalized_advantages(fragment, next_values.ravel()[ends], gamma=0.9, lambda_=lambda_)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.ravel(mine), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("x", [[1.0, 2.0, 4.0], [3.0, 3.0], [10.3] * 1000, [0.0, 0.0]])
def test_standardized_as_on_the_host(x):
    x = np.array(x, np.float32)
    np.testing.assert_allclose(traced_standardized(jnp.asarray(x)), standardized(x), rtol=1e-6)
