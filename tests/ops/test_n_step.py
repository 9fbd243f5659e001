"""Targets of n steps, as digits: with γ = 0.1 the rewards 1, 2, 3 give 1.23."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rollax.errors import ShapeError
from rollax.ops.n_step import n_step_targets

REWARDS = jnp.array([[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 0.0, 0.0]])
ACTED = jnp.array([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
# The first sequence goes on after its third row, to an observation worth 7; the second terminates with its second row.
DISCOUNTS = jnp.array([[0.1, 0.1, 0.1, 0.1], [0.1, 0.0, 0.1, 0.1]])
VALUES = jnp.array([[9.0, 8.0, 6.0, 7.0], [9.0, 3.0, 99.0, 99.0]])


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # one step: r + γ V of the next row
        (1, [[1.8, 2.6, 3.7], [4.3, 5.0]]),
        # two: 1 + 0.2 + 0.06, 2 + 0.3 + 0.07; the last row of each has no second one
        (2, [[1.26, 2.37, 3.7], [4.5, 5.0]]),
        (3, [[1.237, 2.37, 3.7], [4.5, 5.0]]),
        (9, [[1.237, 2.37, 3.7], [4.5, 5.0]]),
    ],
)
def test_by_hand(n, expected):
    for function in (n_step_targets, jax.jit(n_step_targets, static_argnums=4)):
        found = function(REWARDS, DISCOUNTS, ACTED, VALUES[..., None], n)[..., 0]
        np.testing.assert_allclose(found[0, :3], expected[0], rtol=1e-6)
        np.testing.assert_allclose(found[1, :2], expected[1], rtol=1e-6)


def test_several_values_of_a_row():
    both = n_step_targets(REWARDS, DISCOUNTS, ACTED, jnp.stack([VALUES, 2 * VALUES], axis=-1), 2)
    for k in (0, 1):
        alone = n_step_targets(REWARDS, DISCOUNTS, ACTED, (k + 1) * VALUES[..., None], 2)
        np.testing.assert_allclose(both[..., k], alone[..., 0])


def test_no_gradient():
    slopes = jax.grad(lambda v: n_step_targets(REWARDS, DISCOUNTS, ACTED, v, 2).sum())(VALUES[..., None])
    assert not np.asarray(slopes).any()


def test_shapes(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ShapeError):
        n_step_targets(REWARDS[:, :3], DISCOUNTS, ACTED, VALUES[..., None], 1)
