"""Categorical, MultiCategorical and Bernoulli against numbers derived by hand."""

from math import log

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.models.distributions import MASKED_LOGIT
from rollax.models.distributions.discrete import Bernoulli, Categorical, MultiCategorical

# Weights 1 : 2 : 5, so p = 1/8, 1/4, 5/8. The logits carry an offset of 3, which must not matter.
#   H(p) = log 8 / 8 + log 4 / 4 + 5 log 1.6 / 8 = 0.259930 + 0.346574 + 0.293752 = 0.900256
#   KL(p || uniform of 3) = log 3 - H(p) = 0.198356
#   KL(uniform || p) = (log(8/3) + log(4/3) + log(8/15)) / 3 = (0.980829 + 0.287682 - 0.628609) / 3 = 0.213301
LOGITS = np.log(np.array([[1.0, 2.0, 5.0]], np.float32)) + 3
UNIFORM = np.zeros((1, 3), np.float32)
ENTROPY = 0.900256


def test_categorical_numbers():
    dist = Categorical(3, start=4)

    @jax.jit
    def everything(logits, uniform, noise):
        logp = dist.logp(jnp.repeat(logits, 4, axis=0), jnp.array([4, 5, 6, 6]))
        divergences = dist.kl(logits, uniform), dist.kl(uniform, logits)
        drawn = dist.sample(jnp.repeat(logits, 6, axis=0), noise)
        return logp, dist.entropy(logits), *divergences, dist.mode(logits), drawn

    # Cumulative: 0.125, 0.375, 1. A choice owns [its left end, its right end).
    noise = np.array([0.0, 0.124, 0.126, 0.374, 0.376, 1.0], np.float32)[:, None]
    logp, entropy, kl, other_kl, mode, drawn = everything(LOGITS, UNIFORM, noise)
    np.testing.assert_allclose(logp, [log(1 / 8), log(1 / 4), log(5 / 8), log(5 / 8)], rtol=1e-6)
    np.testing.assert_allclose(entropy, [ENTROPY], rtol=1e-5)
    np.testing.assert_allclose(kl, [0.198356], rtol=1e-5)
    np.testing.assert_allclose(other_kl, [0.213301], rtol=1e-5)
    assert mode.tolist() == [6]
    assert drawn.tolist() == [4, 4, 5, 5, 6, 6]


def test_categorical_gradients():
    dist = Categorical(3)
    p = np.array([1 / 8, 1 / 4, 5 / 8])
    # d log p_a / d logits = onehot(a) - p;  dH / d logits_k = -p_k (log p_k + H);  d KL(u || p) / d logits = p - u.
    functions = (lambda x: dist.logp(x, jnp.array([1])), dist.entropy, lambda x: dist.kl(jnp.asarray(UNIFORM), x))
    gradients = jax.jit(jax.jacrev(lambda x: jnp.concatenate([f(x) for f in functions])))(LOGITS)
    expected = np.eye(3)[1] - p, -p * (np.log(p) + ENTROPY), p - 1 / 3
    np.testing.assert_allclose(gradients[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_a_choice_out_of_range_is_improbable():
    # A zero in a padding row is out of range when the space starts elsewhere: it must be neither likely nor NaN.
    dist = Categorical(3, start=4)
    logits, actions = np.ones((3, 3), np.float32), np.array([0, 3, 7])
    assert jax.jit(dist.logp)(logits, actions).tolist() == [np.float32(MASKED_LOGIT)] * 3
    assert not np.any(jax.jit(jax.grad(lambda x: dist.logp(x, jnp.asarray(actions)).sum()))(logits))
    bits = np.array([[0, 2], [1, 1]], np.int8)
    logp = jax.jit(Bernoulli((2,)).logp)(np.zeros((2, 2), np.float32), bits)
    np.testing.assert_allclose(logp, [MASKED_LOGIT, -2 * log(2)], rtol=1e-6)


def test_a_masked_categorical_equals_a_smaller_one():
    dist = Categorical(4)
    logits, allowed = np.log(np.array([[1.0, 70.0, 2.0, 5.0]], np.float32)), np.array([[1, 0, 1, 1]])

    @jax.jit
    def everything(logits, allowed):
        masked, flat = dist.mask(logits, allowed), dist.mask(jnp.zeros((1, 4)), allowed)
        logp = dist.logp(jnp.tile(masked, (4, 1)), jnp.arange(4))
        return logp, jax.nn.softmax(masked), dist.entropy(masked), dist.kl(masked, flat), dist.mode(masked)

    logp, shares, entropy, kl, mode = everything(logits, allowed)
    np.testing.assert_allclose(np.exp(logp), [1 / 8, 0, 1 / 4, 5 / 8], rtol=1e-6)
    assert np.exp(logp)[1] == 0
    assert shares[0, 1] == 0
    np.testing.assert_allclose(entropy, [ENTROPY], rtol=1e-5)
    np.testing.assert_allclose(kl, [0.198356], rtol=1e-5)
    assert mode.tolist() == [3]
    logp, _, entropy, _, _ = everything(logits, np.array([[1, 0, 0, 0]]))
    assert entropy.tolist() == [0.0]
    assert logp[0] == 0.0


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 5, 37])
def test_a_masked_choice_is_never_drawn(size):
    # Many rows and sizes: the rounding of a cumulative sum differs from place to place.
    rows = 50_000
    rng = np.random.default_rng(size)
    allowed = rng.random((rows, size)) < 0.4
    allowed[np.arange(rows), rng.integers(size, size=rows)] = True
    logits = rng.normal(scale=3.0, size=(rows, size)).astype(np.float32)
    dist = Categorical(size)
    masked = jax.jit(dist.mask)(logits, allowed)
    sample = jax.jit(dist.sample)
    assert allowed[np.arange(rows), sample(masked, rng.random((rows, 1), dtype=np.float32))].all()
    for extreme in (0.0, 1.0, 1 - 2.0**-24):
        assert allowed[np.arange(rows), sample(masked, np.full((rows, 1), extreme, np.float32))].all()
    assert allowed[np.arange(rows), jax.jit(dist.mode)(masked)].all()


def test_non_finite_logits_and_full_masks_give_actions_in_range():
    # The policy refuses both with a message; until then nothing may index out of range.
    noise = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]], np.float32)
    for nvec in ((3, 3), (2, 3)):
        dist = MultiCategorical(nvec, (0, 0), (2,))
        sample = jax.jit(dist.sample)
        for broken in (np.nan, np.inf, -np.inf, MASKED_LOGIT):
            actions = np.asarray(sample(np.full((3, dist.num_inputs), broken, np.float32), noise))
            assert ((actions >= 0) & (actions < nvec)).all()


@pytest.mark.long
def test_minus_infinity_is_a_mask():
    logits = jnp.array([[1.0, -np.inf, 2.0, -np.inf]])
    kept, uniform = logits[:, np.array([0, 2])], jnp.zeros((1, 4))
    whole, part = Categorical(4, 0), Categorical(2, 0)
    np.testing.assert_allclose(whole.entropy(logits), part.entropy(kept), rtol=1e-6)
    np.testing.assert_allclose(whole.kl(logits, uniform), part.kl(kept, uniform[:, :2]) + log(2), rtol=1e-5)
    gradient = jax.grad(lambda x: whole.entropy(x).sum() + whole.kl(x, uniform).sum())(logits)
    assert np.isfinite(gradient).all()


def test_a_mask_of_zeros_allows_all():
    dist = Categorical(3, 0)
    masked = dist.mask(jnp.repeat(LOGITS, 2, axis=0), jnp.array([[0, 0, 0], [0, 1, 0]]))
    assert masked.tolist() == [LOGITS[0].tolist(), [np.float32(MASKED_LOGIT), LOGITS[0, 1], np.float32(MASKED_LOGIT)]]


def test_multi_categorical_numbers():
    # Shape (2, 1): the first action has the weights 1:2:5, the second 1:3.
    #   logp(second of the first, first of the second) = log 1/4 + log 1/4;  H = 0.900256 + 0.562335
    #   KL to uniform = 0.198356 + log 2 - 0.562335 = 0.329168
    dist = MultiCategorical((3, 2), (0, 10), (2, 1))

    @jax.jit
    def everything(x, noise):
        logp, gradient = jax.value_and_grad(lambda x: dist.logp(x, jnp.array([[[1], [10]]]))[0])(x)
        # The third choice of the second action is padding.
        padding = dist.logp(x, jnp.array([[[1], [12]]]))
        kl = dist.kl(x, jnp.zeros((1, 5)))
        return logp, gradient, padding, dist.entropy(x), kl, dist.mode(x), dist.sample(x, noise)

    inputs = np.log(np.array([[1.0, 2.0, 5.0, 1.0, 3.0]], np.float32))
    noise = np.array([[0.2, 0.2]], np.float32)
    logp, gradient, padding, entropy, kl, mode, drawn = everything(inputs, noise)
    np.testing.assert_allclose(logp, 2 * log(1 / 4), rtol=1e-6)
    np.testing.assert_allclose(gradient, [[-1 / 8, 3 / 4, -5 / 8, 3 / 4, -3 / 4]], rtol=1e-5)
    assert (padding < MASKED_LOGIT / 2).all()
    np.testing.assert_allclose(entropy, [0.900256 + 0.562335], rtol=1e-5)
    np.testing.assert_allclose(kl, [0.329168], rtol=1e-5)
    assert mode.tolist() == [[[2], [11]]]
    assert drawn.tolist() == [[[1], [10]]]


def test_equal_and_unequal_sizes_are_the_same_function():
    # [3, 3] takes the short path without padding; [3, 3, 1] the other one, and its last action adds nothing.
    rng = np.random.default_rng(0)
    inputs, noise = rng.normal(size=(5, 6)).astype(np.float32), rng.random((5, 3), dtype=np.float32)
    short, padded = MultiCategorical((3, 3), (0, 0), (2,)), MultiCategorical((3, 3, 1), (0, 0, 0), (3,))

    def everything(dist, x, u):
        actions, logp = dist.sample_and_logp(x, u)
        return actions[:, :2], logp, dist.entropy(x), dist.mode(x)[:, :2]

    few = jax.jit(everything, static_argnums=0)(short, inputs, noise[:, :2])
    more = jax.jit(everything, static_argnums=0)(padded, np.append(inputs, np.ones((5, 1), np.float32), axis=1), noise)
    for one, other in zip(few, more, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_multi_categorical_masks_and_frequencies():
    draws = 200_000
    dist = MultiCategorical((3, 2), (0, 0), (2,))
    inputs = np.broadcast_to(np.log(np.array([1.0, 2.0, 5.0, 1.0, 3.0], np.float32)), (draws, 5))
    mask = np.broadcast_to(np.array([1, 0, 1, 1, 1]), (draws, 5))
    noise = np.random.default_rng(0).random((draws, 2), dtype=np.float32)
    actions = np.asarray(jax.jit(lambda x, m, u: dist.sample(dist.mask(x, m), u))(inputs, mask, noise))
    table = np.zeros((3, 2))
    np.add.at(table, (actions[:, 0], actions[:, 1]), 1 / draws)
    p = np.outer([1 / 6, 0, 5 / 6], [1 / 4, 3 / 4])
    assert (table[1] == 0).all()
    assert (np.abs(table - p) <= 5 * np.sqrt(p * (1 - p) / draws)).all()


def test_bernoulli_numbers():
    # p(1) = 3/4 and 1/2. logp([1, 0]) = log 3/4 + log 1/2. H(3/4) = -3/4 log 3/4 - 1/4 log 1/4 = 0.562335.
    # KL(3/4 || 1/2) = log 2 - 0.562335 = 0.130812. Gradient of logp: bit - p = 1/4 and -1/2.
    dist = Bernoulli((2,))

    @jax.jit
    def everything(x, bits, noise):
        logp, gradient = jax.value_and_grad(lambda x: dist.logp(x, bits)[0])(x)
        drawn = dist.sample(jnp.repeat(x, 2, axis=0), noise)
        return logp, gradient, dist.entropy(x), dist.kl(x, jnp.zeros((1, 2))), dist.mode(x), drawn

    noise = np.array([[0.74, 0.51], [0.76, 0.49]], np.float32)
    inputs, bits = np.array([[log(3.0), 0.0]], np.float32), np.array([[1, 0]], np.int8)
    logp, gradient, entropy, kl, mode, drawn = everything(inputs, bits, noise)
    np.testing.assert_allclose(logp, log(3 / 8), rtol=1e-6)
    np.testing.assert_allclose(gradient, [[1 / 4, -1 / 2]], rtol=1e-6)
    np.testing.assert_allclose(entropy, [0.562335 + log(2)], rtol=1e-5)
    np.testing.assert_allclose(kl, [0.130812], rtol=1e-5)
    assert mode.tolist() == [[1, 0]]
    assert drawn.tolist() == [[1, 0], [0, 1]]


def test_bernoulli_is_exact_where_a_bit_is_nearly_certain():
    # p(0) = e^-20 up to 2e-9 of itself: H = e^-20 (1 + 20), logp(0) = -20, and KL to the same is 0.
    dist = Bernoulli((1,))

    @jax.jit
    def everything(x, bits, noise):
        return dist.entropy(x), dist.logp(x, bits), [dist.sample(x, n) for n in noise]

    inputs, noise = np.array([[20.0], [-20.0], [300.0], [-300.0]], np.float32), np.zeros((2, 4, 1), np.float32)
    noise[1] = 1
    entropy, logp, drawn = everything(inputs, np.array([[0], [1], [0], [1]]), noise)
    np.testing.assert_allclose(entropy, [21 * np.exp(-20), 21 * np.exp(-20), 0, 0], rtol=1e-5)
    np.testing.assert_allclose(logp, [-20, -20, -300, -300], rtol=1e-6)
    for bits in drawn:
        assert bits[2:].tolist() == [[1], [0]]
