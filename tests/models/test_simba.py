"""Residual blocks of dense layers against numbers derived by hand, in JAX and PyTorch, and their key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from gymnasium import spaces

from rollax import DQN, PPO, SAC, ConfigError
from rollax.models.config import CriticConfig, ModelConfig
from rollax.models.networks import make_mlp
from rollax.models.simba import ResidualMLP, he_normal
from rollax.torch import layers as torch_layers
from tests.algorithms.tables import f32

# In both kinds the input is (a, b), which becomes x = (a, b) · 2. Of the eight hidden units the first is 3 n₁ and the
# second -n₂, for the input n of a block; they are added to x₂ and x₁.
INPUT = 2 * np.eye(2, dtype=np.float32)
FIRST, SECOND = np.zeros((2, 8), np.float32), np.zeros((8, 2), np.float32)
FIRST[0, 0], FIRST[1, 1] = 3, -1
SECOND[0, 1], SECOND[1, 0] = 1, 1


class OfJax:
    def __init__(self, blocks, normalization):
        self.layers = ResidualMLP(2, (2,) * blocks, "relu", normalization, rngs=nnx.Rngs(0))
        self.layers.input.kernel[...] = jnp.asarray(INPUT)
        for first, second in zip(self.layers.first, self.layers.second, strict=True):
            first.kernel[...], second.kernel[...] = jnp.asarray(FIRST), jnp.asarray(SECOND)

    def __call__(self, x):
        return np.asarray(jax.jit(self.layers)(x))

    def gradients(self, x, weights):
        graph, state = nnx.split(self.layers)
        by = jax.jit(jax.grad(lambda state: (nnx.merge(graph, state)(jnp.asarray(x)) * weights).sum()))(state)
        found = nnx.merge(graph, by)
        return [np.asarray(layer.kernel[...]) for layer in (found.input, found.first[0], found.second[0])]


class OfTorch:
    def __init__(self, blocks, normalization):
        self.layers = torch_layers.ResidualMLP(2, (2,) * blocks, "relu", normalization)
        with torch.no_grad():
            self.layers.input.weight.copy_(torch.as_tensor(INPUT.T))
            for first, second in zip(self.layers.first, self.layers.second, strict=True):
                first.weight.copy_(torch.as_tensor(FIRST.T))
                second.weight.copy_(torch.as_tensor(SECOND.T))

    def __call__(self, x):
        return self.layers(torch.as_tensor(x)).detach().numpy()

    def gradients(self, x, weights):
        (self.layers(torch.as_tensor(x)) * torch.as_tensor(weights)).sum().backward()
        layers = self.layers.input, self.layers.first[0], self.layers.second[0]
        return [layer.weight.grad.numpy().T for layer in layers]


@pytest.mark.parametrize("kind", [OfJax, OfTorch])
class TestResidualMLP:
    def test_blocks_add_to_their_input(self, kind):
        # (1, 2) → (2, 4); the hidden units are 6 and relu(-4) = 0: (2, 10), then 6 and 0 again: (2, 16).
        # (-1, -2) → (-2, -4); relu(-6) = 0 and 4: (2, -4), then 6 and 4: (6, 2).
        x = f32([1, 2], [-1, -2])
        np.testing.assert_allclose(kind(1, None)(x), [[2, 10], [2, -4]], rtol=1e-6)
        np.testing.assert_allclose(kind(2, None)(x), [[2, 16], [6, 2]], rtol=1e-6)

    def test_normalization_precedes_each_block_and_follows_the_last(self, kind):
        # x = (2, 6) is normalized to n = (-1, 1), with no hidden unit above 0: (2, 6) → (-1, 1).
        # x = (6, 2) to (1, -1), with 3 and 1: (7, 5), which is normalized to (1, -1).
        # x = (3, 2) to (1, -1), with 3 and 1: (4, 5), which is normalized to (-1, 1).
        x = f32([1, 3], [3, 1], [1.5, 1])
        np.testing.assert_allclose(kind(1, "layer")(x), [[-1, 1], [1, -1], [-1, 1]], rtol=1e-4)

    def test_batch_normalization_is_also_of_the_input(self, kind):
        norms = kind(2, "batch").layers.norms
        assert len(norms) == 4
        assert len(kind(2, "layer").layers.norms) == 3

    def test_gradients(self, kind):
        # For (1, 2) and the loss 5 y₁ + 7 y₂ = 5 x₁ + 7 (x₂ + 3 x₁), x = 2 (1, 2), the unit 0 is 6 and the others 0:
        #   by x: (5 + 21, 7); by W₁ at unit 0: 7 x = (14, 28); by W₂ of unit 0: 6 (5, 7).
        by_input, by_first, by_second = kind(1, None).gradients(f32([[1, 2]])[0], f32([[5, 7]])[0])
        np.testing.assert_allclose(by_input, [[26, 7], [52, 14]], rtol=1e-6)
        np.testing.assert_allclose(by_first[:, 0], [14, 28], rtol=1e-6)
        np.testing.assert_allclose(by_first[:, 1:], 0)
        np.testing.assert_allclose(by_second[0], [30, 42], rtol=1e-6)
        np.testing.assert_allclose(by_second[1:], 0)


def test_initial_weights():
    # The variance 2 / 256, from 131,072 numbers.
    kernel = np.asarray(he_normal(jax.random.key(0), (256, 512)))
    np.testing.assert_allclose(kernel.var(), 2 / 256, rtol=0.02)
    np.testing.assert_allclose(kernel.mean(), 0, atol=1e-3)
    assert jax.eval_shape(lambda: he_normal(jax.random.key(0), (3, 5))).shape == (3, 5)
    twin = torch_layers.ResidualMLP(4, (128,), "relu", "layer")
    np.testing.assert_allclose(twin.first[0].weight.var().item(), 2 / 128, rtol=0.05)
    np.testing.assert_allclose(twin.second[0].weight.var().item(), 2 / 512, rtol=0.05)


@pytest.mark.parametrize("make", [lambda *a: make_mlp(*a, rngs=nnx.Rngs(0)), torch_layers.make_mlp])
def test_without_hidden_layers_there_are_no_blocks(make):
    # As behind convolutions only.
    assert make(3, (), ModelConfig(residual_blocks=True)).features == 3


@pytest.mark.parametrize("base", [PPO, DQN, SAC])
def test_blocks_of_algorithms(base):
    model = {"fcnet_hiddens": (6, 6), "residual_blocks": True, "normalization": "layer"}
    actions = spaces.Box(-1, 1, (2,), np.float32) if base is SAC else spaces.Discrete(3)
    weights = base.make_policy(spaces.Box(-9, 9, (3,), np.float32), actions, {"model": model}).get_weights()
    shapes = {name: value.shape[-2:] for name, value in weights.items() if name.endswith("second.1.kernel")}
    assert shapes
    assert set(shapes.values()) == {(24, 6)}


@pytest.mark.parametrize(
    ("part", "options"),
    [
        (ModelConfig, {"fcnet_hiddens": (8, 16)}),
        (ModelConfig, {"fcnet_hiddens": ()}),
        (ModelConfig, {"normalization": "layer", "normalize_before_activation": True}),
        (CriticConfig, {"dropout": 0.1}),
    ],
)
def test_settings_that_do_not_fit_blocks(part, options):
    base = SAC if part is CriticConfig else PPO
    with pytest.raises(ConfigError, match=part.part):
        base.config_class(**{part.part: {"residual_blocks": True, **options}})
