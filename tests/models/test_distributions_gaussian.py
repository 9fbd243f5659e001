"""DiagGaussian and SquashedGaussian against numbers derived by hand, and integrals."""

from math import atanh, log, pi, tanh

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian

# Two numbers: N(1, 2²) and N(0, 1²). With c = log(2π)/2 = 0.918939:
#   logp(2, 0) = -(1/2)²/2 - log 2 - c  +  -c        = -0.125 - 0.693147 - 2 · 0.918939 = -2.656024
#   H          = (1/2 + c + log 2) + (1/2 + c)       = 3.531024
#   KL(p || two N(0, 1)) = (4 + 1)/2 - 1/2 - log 2 + 0 = 1.306853
#   KL(two N(0, 1) || p) = (1 + 1)/8 - 1/2 + log 2 + 0 = 0.443147
INPUTS = np.array([[1.0, 0.0, log(2.0), 0.0]], np.float32)
STANDARD = np.zeros((1, 4), np.float32)
ENTROPY = jax.jit(SquashedGaussian(()).entropy)


def test_diag_gaussian_numbers():
    dist = DiagGaussian((2, 1))

    @jax.jit
    def everything(x, standard, noise):
        divergences = dist.kl(x, standard), dist.kl(standard, x)
        logp = dist.logp(x, jnp.array([[[2.0], [0.0]]]))
        return logp, dist.entropy(x), *divergences, dist.mode(x), dist.sample(x, noise)

    noise = np.array([[0.841345, 0.5]], np.float32)
    logp, entropy, kl, other_kl, mode, drawn = everything(INPUTS, STANDARD, noise)
    np.testing.assert_allclose(logp, [-2.656024], rtol=1e-6)
    np.testing.assert_allclose(entropy, [3.531024], rtol=1e-6)
    np.testing.assert_allclose(kl, [1.306853], rtol=1e-6)
    np.testing.assert_allclose(other_kl, [0.443147], rtol=1e-6)
    np.testing.assert_allclose(mode, [[[1.0], [0.0]]])
    # Φ(1) = 0.841345: the first number is one deviation above its mean. 0.5 gives the mean.
    np.testing.assert_allclose(drawn, [[[3.0], [0.0]]], rtol=1e-5, atol=1e-6)


def test_diag_gaussian_gradients():
    # z = 1/2: d logp / d mean = z / σ = 1/4, d logp / d log σ = z² - 1 = -3/4; for z = 0, 0 and -1.
    # A reparametrized sample moves with its mean, and with its deviation by σ z; z = 1 and 0.
    dist = DiagGaussian((2,))

    @jax.jit
    @jax.jacrev
    def gradients(x):
        drawn = dist.sample(x, jnp.array([[0.841345, 0.5]])).sum()
        return dist.logp(x, jnp.array([[2.0, 0.0]]))[0], dist.entropy(x)[0], drawn

    of_logp, of_entropy, of_sample = gradients(INPUTS)
    np.testing.assert_allclose(of_logp, [[1 / 4, 0, -3 / 4, -1]], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(of_entropy, [[0, 0, 1, 1]])
    np.testing.assert_allclose(of_sample, [[1, 1, 2, 0]], rtol=1e-5, atol=1e-6)


def test_tails_of_normal_noise_are_exact():
    noise = np.concatenate([2.0 ** -np.arange(1, 25), 1 - 2.0 ** -np.arange(1, 25)]).astype(np.float32)
    inputs = np.zeros((len(noise), 2), np.float32)
    z = jax.jit(DiagGaussian(()).sample)(inputs, noise[:, None])
    np.testing.assert_allclose(z, stats.norm.ppf(noise.astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_densities_integrate_to_one():
    grid = np.linspace(-30, 30, 60_001, dtype=np.float32)
    inputs = jnp.broadcast_to(jnp.array([0.4, 0.9]), (len(grid), 2))
    density = np.exp(np.asarray(jax.jit(DiagGaussian(()).logp)(inputs, grid), np.float64))
    assert abs(np.trapezoid(density, grid) - 1) < 1e-5
    # In u = atanh(a), da = (1 - a²) du, so that the tails count too; |u| < 6 holds all but 1e-9 of N(0.4, 0.9²).
    u = np.linspace(-6, 6, 20_001)
    a = np.tanh(u)
    inputs = jnp.broadcast_to(jnp.array([0.4, log(0.9)]), (len(u), 2))
    density = np.exp(np.asarray(jax.jit(SquashedGaussian(()).logp)(inputs, a), np.float64))
    assert abs(np.trapezoid(density * (1 - a**2), u) - 1) < 2e-3


def test_squashed_gaussian_numbers():
    # N(0, 1) at a = 1/2: u = atanh(1/2) = 0.549306;
    #   logp = -u²/2 - c - log(1 - 1/4) = -0.150869 - 0.918939 + 0.287682 = -0.782125
    # N(1, 2²), the same a: z = (u - 1)/2 = -0.225347; logp = -0.025391 - 0.693147 - 0.918939 + 0.287682 = -1.349795
    dist = SquashedGaussian((2,))

    @jax.jit
    def everything(x, standard, noise):
        logp = dist.logp(x, jnp.array([[0.5, 0.5]]))
        return logp, dist.mode(x), dist.kl(x, standard), dist.sample_and_logp(x, noise)

    logp, mode, kl, (actions, logp_of_them) = everything(INPUTS, STANDARD, np.array([[0.841345, 0.5]], np.float32))
    np.testing.assert_allclose(logp, [-0.782125 - 1.349795], rtol=1e-5)
    np.testing.assert_allclose(mode, [[tanh(1.0), 0.0]], rtol=1e-6)
    # tanh keeps KL divergences.
    np.testing.assert_allclose(kl, [1.306853], rtol=1e-6)
    np.testing.assert_allclose(actions, [[tanh(3.0), 0.0]], rtol=1e-5, atol=1e-6)
    # u = (3, 0), z = (1, 0): logp = -1/2 - log 2 - 2c - log(1 - tanh²(3)) = -3.031024 + 4.618619 = 1.587595
    np.testing.assert_allclose(logp_of_them, [1.587595], rtol=1e-4)


@pytest.mark.parametrize(
    ("mean", "std", "error"), [(0.0, 0.1, 1e-4), (0.0, 1.0, 1e-4), (3.0, 1.0, 1e-4), (0.5, 2.0, 4e-3), (1.0, 4.0, 0.06)]
)
def test_squashed_entropy_is_within_its_documented_error(mean, std, error):
    z = np.linspace(-10, 10, 20_001)
    u = mean + std * z
    slope = 2 * (log(2) - u - np.logaddexp(0, -2 * u))
    exact = 0.5 * log(2 * pi) + 0.5 + log(std) + np.trapezoid(slope * stats.norm.pdf(z), z)
    got = ENTROPY(jnp.array([[mean, log(std)]]))
    assert abs(got[0] - exact) < error
    # On (-1, 1) nothing has a higher entropy than the uniform distribution.
    assert got[0] < log(2)


def test_squashed_actions_at_the_bounds_have_a_finite_density():
    # Clipped to ±(1 - 1e-6): u = 7.254; for N(0, 1) logp = -u²/2 - c - log(1 - (1 - 1e-6)²), the last 13.122363.
    dist = SquashedGaussian(())
    u = atanh(1 - 1e-6)
    logp = jax.jit(dist.logp)(jnp.zeros((2, 2)), jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(logp, [-(u**2) / 2 - 0.918939 + 13.122363] * 2, rtol=0.02)
    far = jnp.array([[40.0, 0.0], [-40.0, 2.0]])
    actions, logp = jax.jit(dist.sample_and_logp)(far, jnp.array([[0.5], [0.5]]))
    assert actions.tolist() == [1.0, -1.0]
    # log(1 - tanh²(±40)) = 2 log 2 - 80, where 1 - tanh² itself is 0 in float32.
    np.testing.assert_allclose(logp, [80 - 2 * log(2) - 0.918939, 80 - 2 * log(2) - 0.918939 - 2], rtol=1e-6)
    for f in (lambda x: dist.logp(x, actions).sum(), lambda x: dist.sample_and_logp(x, jnp.full((2, 1), 0.5))[1].sum()):
        value, gradient = jax.jit(jax.value_and_grad(f))(far)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_saturated_means_have_a_gradient():
    # The entropy gradient of SAC, d(-logp)/d mean = d log(1 - tanh²(u))/du = -2 tanh(u), does not vanish where tanh is
    # flat.
    dist = SquashedGaussian(())
    gradient = jax.jit(jax.grad(lambda x: -dist.sample_and_logp(x, jnp.array([[0.5]]))[1][0]))(jnp.array([[20.0, 0.0]]))
    np.testing.assert_allclose(gradient[0, 0], -2.0, rtol=1e-6)


@pytest.mark.parametrize(("dist", "low", "high"), [(DiagGaussian(()), -20, 10), (SquashedGaussian(()), -20, 2)])
def test_log_std_is_limited_and_its_gradient_ends_there(dist, low, high):
    both = jax.jit(jax.value_and_grad(lambda x: dist.entropy(x)[0]))

    def entropy_and_gradient(log_std):
        value, gradient = both(jnp.array([[0.3, log_std]]))
        return float(value), gradient[0, 1]

    for limit, beyond in ((low, low - 5.0), (high, high + 5.0)):
        assert entropy_and_gradient(beyond)[0] == entropy_and_gradient(float(limit))[0]
        assert entropy_and_gradient(beyond)[1] == 0
    assert entropy_and_gradient(low + 1.0)[1] > 0.9
