"""`QNetwork`: values, distributions, dueling streams, noise, and values of actions with embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models.config import ModelConfig
from rollax.models.noisy_linear import NoisyLinear
from rollax.models.q_network import QNetwork, expected_values

BOX = spaces.Box(-1, 1, (3,), np.float32)
SUPPORT = np.array([0.0, 1.0, 4.0], np.float32)
OBS = jnp.array(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)


def network(space=BOX, actions=4, **options):
    return QNetwork(space, actions, ModelConfig(fcnet_hiddens=(8,)), rngs=nnx.Rngs(0), **options)


@pytest.mark.short(every=3)
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("support", [None, SUPPORT])
@pytest.mark.parametrize("sigma0", [None, 0.5])
def test_shapes(dueling, support, sigma0):
    model = network(dueling=dueling, support=support, sigma0=sigma0, hiddens=(6,))
    values, best, _, aux = nnx.eval_shape(lambda model: model(OBS), model)
    assert values.shape == (5, 4)
    assert best.shape == (5,)
    assert aux["logits"].shape == (5, 4, 1 if support is None else 3)


def test_the_mean_of_a_distribution():
    # probabilities (¼, ½, ¼) of the returns 0, 1, 4: ½ + 1 = 1.5
    logits = np.log(np.array([[[1.0, 2.0, 1.0]]], np.float32))
    np.testing.assert_allclose(jax.jit(lambda x: expected_values(x, SUPPORT))(logits), [[1.5]], rtol=1e-6)


def test_dueling_streams():
    model = network()
    stream = model.value
    assert stream is not None

    @jax.jit
    def both(obs):
        hidden = model.trunk(obs)
        advantages, value = model.advantages(hidden), stream(hidden)
        return model(obs)[0], value + advantages - advantages.mean(1, keepdims=True)

    np.testing.assert_allclose(*both(OBS), rtol=1e-5, atol=1e-6)


def test_values_of_parametric_actions_follow_their_embeddings():
    space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(4), "avail_actions": spaces.Box(-1, 1, (4, 2), np.float32), "state": BOX}
    )
    embeddings = np.random.default_rng(1).normal(size=(5, 4, 2)).astype(np.float32)
    obs = {"action_mask": np.ones((5, 4), np.int8), "avail_actions": embeddings, "state": OBS}
    turned = {**obs, "avail_actions": embeddings[:, [2, 0, 3, 1]]}
    for support in (None, SUPPORT):
        values = jax.jit(network(space, support=support, dueling=False))
        np.testing.assert_allclose(values(turned)[0], np.asarray(values(obs)[0])[:, [2, 0, 3, 1]], rtol=1e-4, atol=1e-5)


class TestNoisyLinear:
    def layer(self):
        return NoisyLinear(3, 2, sigma0=0.6, rngs=nnx.Rngs(1))

    def test_without_noise_it_is_linear(self):
        layer = self.layer()
        layer.eval()
        np.testing.assert_allclose(layer(OBS), OBS @ layer.kernel[...] + layer.bias[...], rtol=1e-6)
        np.testing.assert_array_equal(layer(OBS), layer(OBS))

    @pytest.mark.long
    def test_every_call_draws_one_noise_for_all_rows(self):
        layer = self.layer()
        same_rows = jnp.ones((4, 3))
        first, second = layer(same_rows), layer(same_rows)
        np.testing.assert_array_equal(first, np.repeat(first[:1], 4, 0))
        assert not np.allclose(first, second)

    @pytest.mark.long
    def test_scale_of_the_noise(self):
        # x = 0 leaves b + σ f(ε): f(ε) has variance E|ε| = √(2/π), and σ = 0.6 / √3
        layer = self.layer()
        draws = np.array([layer(jnp.zeros((1, 3)))[0] for _ in range(400)]) - layer.bias[...]
        np.testing.assert_allclose(draws.var(), 0.36 / 3 * np.sqrt(2 / np.pi), rtol=0.2)

    def test_initial_numbers(self):
        layer = NoisyLinear(4, 50, sigma0=0.5, rngs=nnx.Rngs(0))
        assert np.abs(layer.kernel[...]).max() <= 0.5
        assert np.abs(layer.kernel[...]).max() > 0.45
        np.testing.assert_array_equal(layer.kernel_sigma[...], np.full((4, 50), 0.25, np.float32))

    def test_gradients_reach_the_deviations(self):
        layer = self.layer()
        gradients = nnx.jit(nnx.grad(lambda noisy: noisy(OBS).sum()))(layer)
        assert all(np.abs(np.asarray(leaf)).max() > 0 for leaf in jax.tree.leaves(gradients))
