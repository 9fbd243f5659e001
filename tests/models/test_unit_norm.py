"""Layers whose weights keep their norms, and the networks of residual blocks, against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models import unit_norm
from rollax.models.actor_with_critics import make_critics
from rollax.models.config import ModelConfig
from rollax.models.unit_norm import PlainLayers, UnitActor, UnitBatchNorm, UnitLinear, UnitRMSNorm, with_unit_norms
from rollax.policy.split_model import SplitModel

BOX = spaces.Box(-1, 1, (2,), np.float32)
SEEN = spaces.Dict({"force": spaces.Box(-9, 9, (3,), np.float32), "side": spaces.Discrete(2)})


def f32(*numbers):
    return jnp.array(numbers, jnp.float32)


class TestWithUnitNorms:
    def test_columns_of_kernels(self):
        # Columns (3, 4) and (0, 2) of the norms 5 and 2, and one of zeros; another member of an ensemble.
        kernel = f32([[3, 0, 0], [4, 2, 0]], [[-1, 0, 6], [0, 1, 8]])
        expected = f32([[0.6, 0, 0], [0.8, 1, 0]], [[-1, 0, 0.6], [0, 1, 0.8]])
        for apply in (with_unit_norms, jax.jit(with_unit_norms)):
            found = apply({"critics.first.unit_kernel": kernel})
            np.testing.assert_allclose(found["critics.first.unit_kernel"], expected, rtol=1e-6)

    def test_scale_and_bias_share_a_norm(self):
        # 1 + 4 + 4 + 16 = 25 for two features: times √2 / 5. Without a bias 9 + 16 = 25 too.
        params = {"a.unit_scale": f32(1, 2), "a.unit_bias": f32(2, 4), "b.unit_scale": f32(3, 4)}
        found = with_unit_norms(params)
        factor = np.sqrt(2) / 5
        for name, value in params.items():
            np.testing.assert_allclose(found[name], value * factor, rtol=1e-6)

    def test_members_of_an_ensemble_have_norms_of_their_own(self):
        found = with_unit_norms({"a.unit_scale": f32([3, 4], [0.3, 0.4])})
        np.testing.assert_allclose(found["a.unit_scale"], [np.sqrt(2) * f32(0.6, 0.8)] * 2, rtol=1e-6)

    def test_others_stay(self):
        params = {"head.bias": f32(3, 4), "log_alpha": f32(7), "cnn.kernel": f32([3, 4])}
        found = with_unit_norms(params)
        assert all(found[name] is value for name, value in params.items())


def test_a_kernel_begins_with_unit_columns():
    for shape in ((5, 3), (3, 5)):
        kernel = np.asarray(UnitLinear(*shape, rngs=nnx.Rngs(0)).unit_kernel[...])
        np.testing.assert_allclose((kernel**2).sum(axis=0), 1.0, rtol=1e-5)
        products = kernel.T @ kernel if shape[0] > shape[1] else kernel @ kernel.T
        if shape[0] > shape[1]:
            np.testing.assert_allclose(products, np.eye(min(shape)), atol=1e-5)


class TestUnitBatchNorm:
    # Columns with the means 2 and 20 and the variances 4 and 400.
    x = f32([0, 0], [4, 40])

    def layer(self):
        layer = UnitBatchNorm(2, momentum=0.75, epsilon=0.0)
        layer.unit_scale[...], layer.unit_bias[...] = f32(2, 2), f32(1, 1)
        return layer

    def test_in_training(self):
        layer = self.layer()
        np.testing.assert_allclose(layer(self.x), [[-1, -1], [3, 3]], rtol=1e-6)
        # ¾ of 0 and 1, and ¼ of the batch's.
        np.testing.assert_allclose(layer.mean[...], [0.5, 5], rtol=1e-6)
        np.testing.assert_allclose(layer.var[...], [1.75, 100.75], rtol=1e-6)

    def test_in_evaluation(self):
        layer = self.layer()
        layer.mean[...], layer.var[...] = f32(1, 4), f32(4, 16)
        layer.set_attributes(use_running_average=True)
        # 2 (x - μ) / σ + 1
        np.testing.assert_allclose(layer(self.x), [[0, -1], [4, 19]], rtol=1e-6)
        np.testing.assert_array_equal(layer.mean[...], [1, 4])

    def test_gradients_flow_through_the_statistics_of_the_batch(self):
        # The outputs do not depend on a shift of the batch.
        graph, state = nnx.split(self.layer())
        gradient = jax.grad(lambda x: (nnx.merge(graph, state, copy=True)(x) * f32([1, 2], [3, 5])).sum())(self.x)
        np.testing.assert_allclose(np.asarray(gradient).sum(axis=0), 0.0, atol=1e-6)


def test_rms_norm():
    # The mean square of (3, 4, 0, 0) is 25 / 4.
    layer = UnitRMSNorm(4, epsilon=0.0)
    layer.unit_scale[...] = f32(1, 2, 1, 1)
    np.testing.assert_allclose(layer(f32([3, 4, 0, 0])), [[1.2, 3.2, 0, 0]], rtol=1e-6)


def test_inverted_residual():
    block = unit_norm.InvertedResidual(2, rngs=nnx.Rngs(0))
    assert block.first.unit_kernel[...].shape == (2, 8)
    block.eval()
    first, second = f32([1, -1, 0, 0, 0, 0, 0, 0], [0, 0, 1, -1, 0, 0, 0, 0]), np.zeros((8, 2), np.float32)
    second[:4] = [[1, 0], [1, 0], [0, 1], [0, -1]]
    block.first.unit_kernel[...], block.second.unit_kernel[...] = first, second
    # In evaluation the statistics are 0 and 1. relu of (x, -x) of both columns: |x₁| in one output, x₂ in the other.
    x = f32([3, 2], [-3, -2])
    np.testing.assert_allclose(block(x), [[6, 4], [0, -2]], rtol=1e-4, atol=1e-4)


class TestPlainLayers:
    # Columns with the means 2 and 20 and the variances 4 and 400.
    x = f32([0, 0], [4, 40])

    def layers(self):
        layers = PlainLayers(2, (2, 3), rngs=nnx.Rngs(0))
        layers.layers[0].unit_kernel[...] = f32([0.6, 0], [0.8, -1])
        return layers

    def test_in_training(self):
        # The input becomes -1, -1 and 1, 1, and the first layer -1.4, 1 and 1.4, -1, then again -1, 1 and 1, -1; with
        # ε = 0.001 in each normalization: x / √(1 + 0.001 / σ²).
        layers = self.layers()
        layers.layers[1].unit_kernel[...] = f32([1, 0, 0.6], [0, 1, -0.8])
        out = layers(self.x)
        # Of the second layer's inputs 0, 1 and 1, 0 the outputs 0, 1, -0.8 and 1, 0, 0.6 become -1, 1, -1 and 1, -1, 1.
        np.testing.assert_allclose(out, [[0, 1, 0], [1, 0, 1]], atol=0.003)
        np.testing.assert_allclose(layers.norms[0].mean[...], [0.02, 0.2], rtol=1e-5)  # 0.01 of the batch
        np.testing.assert_allclose(layers.norms[0].var[...], [1.03, 4.99], rtol=1e-5)
        assert [len(norm.mean[...]) for norm in layers.norms] == [2, 2, 3]
        assert layers.features == 3

    def test_in_evaluation(self):
        layers = PlainLayers(2, (2,), rngs=nnx.Rngs(0))
        layers.layers[0].unit_kernel[...] = f32([0.6, 0], [0.8, -1])
        layers.eval()
        layers.norms[1].scale[...], layers.norms[1].bias[...] = f32(2, 2), f32(0, 50)
        # The statistics are 0 and 1: (0.6 · 4 + 0.8 · 40) · 2 = 68.8, and -40 · 2 + 50 < 0; twice divided by √1.001.
        np.testing.assert_allclose(layers(self.x), [[0, 50], [68.8 / 1.001, 0]], rtol=1e-5)

    def test_only_kernels_keep_their_norms(self):
        params, _ = SplitModel(self.layers()).arrays_of(self.layers())
        doubled = {name: 2 * value for name, value in params.items()}
        for name, value in with_unit_norms(doubled).items():
            same = params[name] if name.endswith("unit_kernel") else doubled[name]
            np.testing.assert_allclose(value, same, rtol=1e-5, atol=1e-6)
        assert {name.rpartition(".")[2] for name in params} == {"unit_kernel", "scale", "bias"}

    @pytest.mark.long
    def test_gradients_do_not_depend_on_the_size_of_weights(self):
        # Batch normalization divides by it, so the gradient by a kernel is orthogonal to each of its columns.
        layers = self.layers()
        layers.set_attributes(epsilon=0.0)
        graph, state = nnx.split(layers)
        x = np.random.default_rng(0).standard_normal((16, 2)).astype(np.float32)

        def loss(state):
            return (nnx.merge(graph, state, copy=True)(jnp.asarray(x)) * f32(1, 2, 3)).sum()

        by = nnx.merge(graph, jax.grad(loss)(state))
        for gradient, layer in zip(by.layers, layers.layers, strict=True):
            kernel, found = layer.unit_kernel[...], np.asarray(gradient.unit_kernel[...])
            assert np.abs(found).max() > 0.01
            np.testing.assert_allclose((kernel * found).sum(axis=0), 0, atol=1e-4)


class TestNetworks:
    config = ModelConfig(fcnet_hiddens=(6, 6))

    @pytest.mark.long
    def test_log_standard_deviations(self):
        actor = UnitActor(SEEN, 4, self.config, rngs=nnx.Rngs(0))
        actor.eval()
        actor.head.unit_kernel[...] = jnp.zeros((6, 4))
        # Means are free; -10 + 6 (1 + tanh y) is -4 for y = 0, and within (-10, 2).
        actor.head.bias[...] = f32(7, -7, 0, 99)
        obs = {"force": np.zeros((3, 3), np.float32), "side": np.zeros(3, np.int64)}
        np.testing.assert_allclose(actor(obs).policy, [[7, -7, -4, 2]] * 3, rtol=1e-6)

    @pytest.mark.long
    @pytest.mark.parametrize("residual", [True, False])
    @pytest.mark.parametrize("outputs", [None, 5])
    def test_critics(self, outputs, residual):
        rngs = nnx.Rngs(0)
        options = {"outputs": outputs, "residual_blocks": residual, "rngs": rngs}
        critics = make_critics(2, lambda: unit_norm.UnitActionValue(SEEN, BOX, self.config, **options))
        obs = {"force": np.eye(3, dtype=np.float32), "side": np.zeros(3, np.int64)}
        values = np.asarray(critics(obs, np.zeros((3, 2), np.float32)))
        assert values.shape == ((2, 3) if outputs is None else (2, 3, 5))
        assert not np.allclose(values[0], values[1])
        params, extra = SplitModel(critics).arrays_of(critics)
        assert {name.rpartition(".")[2] for name in extra} == {"mean", "var"}
        for name, value in with_unit_norms(params).items():  # they begin with their norms
            np.testing.assert_allclose(value, params[name], rtol=1e-5, atol=1e-6)
