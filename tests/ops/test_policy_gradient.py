"""Policy losses against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import ShapeError
from rollax.ops.policy_gradient import (
    adapted_kl_coeff,
    clip_fraction,
    clipped_surrogate,
    policy_gradient_loss,
    truncated_reference,
)
from tests.env.refused import raised


def test_clip_fraction(wrap):
    #   ratios 1.5, 0.5, 1.1, 0.9 and a row of padding: two of four are outside of [0.8, 1.2], all of [0.95, 1.05]
    ratios = jnp.array([1.5, 0.5, 1.1, 0.9, 9.0])
    old_logp = jnp.array([-1.0, -2.0, -0.5, -0.1, -jnp.inf])
    logp, mask = old_logp + jnp.log(ratios), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
    assert wrap(lambda *columns: clip_fraction(*columns, clip=0.2))(logp, old_logp, mask) == 0.5
    assert wrap(lambda *columns: clip_fraction(*columns, clip=0.05))(logp, old_logp, mask) == 1.0


def test_clipped_surrogate(wrap):
    #   step  ratio   A    r·A   clip(r)·A   min
    #    0     1.5    2    3.0      2.4      2.4   clip binds from above
    #    1     0.5   -1   -0.5     -0.8     -0.8   clip binds from below
    #    2     1.0    3    3.0      3.0      3.0   inside
    #    3     1.5   -2   -3.0     -2.4     -3.0   outside, but the clipped term is larger: it does not bind
    #    4     0.5    4    2.0      3.2      2.0   the same below
    #    5     9.0    9     –        –        –    padding
    #   loss -(2.4 - 0.8 + 3 - 3 + 2)/5 = -0.72; gradient in logp -r A / 5 where nothing binds: [0, 0, -3, 3, -2, 0]/5
    ratios = jnp.array([1.5, 0.5, 1.0, 1.5, 0.5, 9.0])
    old_logp = jnp.array([-1.0, -2.0, -0.5, -0.1, -3.0, -1.0])
    advantages = jnp.array([2.0, -1.0, 3.0, -2.0, 4.0, 9.0])
    mask = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    logp = old_logp + jnp.log(ratios)
    loss = jax.value_and_grad(lambda *columns: clipped_surrogate(*columns, clip=0.2), argnums=(0, 1, 2))
    value, gradients = wrap(loss)(logp, old_logp, advantages, mask)
    assert value == pytest.approx(-0.72, rel=1e-5)
    np.testing.assert_allclose(gradients[0], [0, 0, -0.6, 0.6, -0.4, 0], atol=1e-6)
    assert (gradients[1] == 0).all()
    assert (gradients[2] == 0).all()


def test_clipped_surrogate_is_finite_with_enormous_ratios_and_nan_padding():
    # e^200 overflows: where the clip binds (A > 0) the row counts 1.2 A and has no gradient. The padding's ratio is
    # e^(+inf), and its advantage NaN.
    logp, old_logp = jnp.array([0.0, 0.0, jnp.inf]), jnp.array([-200.0, 0.0, 0.0])
    advantages, mask = jnp.array([1.0, 1.0, jnp.nan]), jnp.array([1.0, 1.0, 0.0])
    loss = lambda x: clipped_surrogate(x, old_logp, advantages, mask, clip=0.2)  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(logp)
    assert value == pytest.approx(-2.2 / 2)
    assert gradient.tolist() == [0, -0.5, 0]


def test_policy_gradient_loss(wrap):
    # -(2·(-1) + (-3)·(-0.5) + 1·(-2))/3 = 2.5/3; gradient -A/3, zero in the padding.
    logp, advantages = jnp.array([-1.0, -0.5, -2.0, jnp.inf]), jnp.array([2.0, -3.0, 1.0, jnp.nan])
    mask = jnp.array([1.0, 1.0, 1.0, 0.0])
    value, gradients = wrap(jax.value_and_grad(policy_gradient_loss, argnums=(0, 1)))(logp, advantages, mask)
    assert value == pytest.approx(2.5 / 3)
    np.testing.assert_allclose(gradients[0], [-2 / 3, 1, -1 / 3, 0], rtol=1e-6)
    assert (gradients[1] == 0).all()


@pytest.mark.parametrize(("kl", "expected"), [(0.021, 0.3), (0.019, 0.2), (0.0051, 0.2), (0.0049, 0.1), (0.0, 0.1)])
def test_adapted_kl_coeff(wrap, kl, expected):
    # Target 0.01: above 0.02 the coefficient 0.2 grows by half, below 0.005 it halves.
    assert wrap(lambda kl: adapted_kl_coeff(0.2, kl, target=0.01))(jnp.float32(kl)) == pytest.approx(expected)


def test_kl_coefficient_stays_above_zero():
    coeff = 1e-3
    for _ in range(200):
        coeff = float(adapted_kl_coeff(coeff, 0.0, target=0.01))
    assert coeff == pytest.approx(1e-10)
    assert float(adapted_kl_coeff(coeff, 1.0, target=0.01)) == pytest.approx(1.5e-10)
    assert float(adapted_kl_coeff(0.0, 0.0, target=0.01)) == 0.0
    assert float(adapted_kl_coeff(1e-12, 0.0, target=0.01)) == pytest.approx(1e-12)


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 1)])
@pytest.mark.parametrize("place", range(4))
def test_wrong_shapes_raise(shape, place, own_checks):
    columns = [jnp.ones(4)] * 4
    columns[place] = jnp.ones(shape)
    raised(ShapeError, clipped_surrogate, *columns, says="where:    clipped_surrogate...got:...expected:", clip=0.2)
    if place:
        raised(ShapeError, jax.jit(policy_gradient_loss), *columns[1:], says="policy_gradient_loss")


def test_truncated_reference(wrap):
    #   row    π     π'    μ   μ/π'  max(π', μ/2)  ratio π / max(π', μ/2)
    #    0   .30   .20   .10   1/2      .20          1.5
    #    1   .30   .10   .15   1.5      .10          3.0
    #    2   .30   .05   .40    8       .20          1.5   = 2 π/μ: the weight is limited
    logp, target_logp, behaviour_logp = (jnp.log(jnp.array(p)) for p in ([0.3] * 3, [0.2, 0.1, 0.05], [0.1, 0.15, 0.4]))
    reference = wrap(truncated_reference)(target_logp, behaviour_logp)
    np.testing.assert_allclose(jnp.exp(logp - reference), [1.5, 3, 1.5], rtol=1e-5)
    weight = jnp.minimum(jnp.exp(behaviour_logp - target_logp), 2.0)
    np.testing.assert_allclose(jnp.exp(logp - reference), weight * jnp.exp(logp - behaviour_logp), rtol=1e-5)
    # With a limit of 10, row 2 is not limited.
    reference = truncated_reference(target_logp, behaviour_logp, limit=10.0)[2]
    np.testing.assert_allclose(jnp.exp(reference), 0.05, rtol=1e-5)


def test_truncated_reference_refuses_other_shapes(own_checks):
    raised(ShapeError, truncated_reference, jnp.zeros(3), jnp.zeros((3, 1)), says="behaviour_logp")
