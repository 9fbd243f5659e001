"""Scaled observations and the networks of random network distillation, against numbers derived by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.models.config import ModelConfig
from rollax.models.random_network_distillation import RandomNetworkDistillation, ScaledObservations
from tests.algorithms.tables import f32

NESTED = spaces.Dict(
    {
        "picture": spaces.Box(0, 255, (6, 7), np.uint8),
        "number": spaces.Discrete(3, start=1),
        "a": spaces.Box(-9, 9, (2,), np.float32),
        "action_mask": spaces.MultiBinary(2),
    }
)


def columns():
    pictures = np.zeros((2, 6, 7), np.uint8)
    pictures[1, 5, 6] = 200
    return {"a": f32(1, -3, 2, 5).reshape(2, 2), "number": np.array([1, 3]), "picture": pictures}


@pytest.mark.parametrize("module", [np, jnp])
def test_only_numbers_are_scaled(module):
    scaled = ScaledObservations.of(NESTED)
    assert scaled.size == 2 + 6 * 7
    numbers = scaled.numbers(columns())
    np.testing.assert_array_equal(numbers[:, :2], [[1, -3], [2, 5]])
    np.testing.assert_array_equal(numbers[1, -3:], [0, 0, 200])
    #   a         (1 - 0) / 0.5 = 2, (-3 - 1) / 2 = -2; (2 - 0) / 0.5 = 4, (5 - 1) / 2 = 2
    #   a pixel   (0 - 10) / 1 = -10, clipped to -5; the last one (200 - 190) / 4 = 2.5
    mean, deviation = np.full(44, 10, np.float32), np.ones(44, np.float32)
    mean[[0, 1, -1]], deviation[[0, 1, -1]] = (0, 1, 190), (0.5, 2, 4)
    obs = jax.tree.map(module.asarray, columns())
    found = scaled.scaled(obs, {"mean": module.asarray(mean), "deviation": module.asarray(deviation)})
    a, number, picture = (np.asarray(found[str(place)]) for place in range(3))
    np.testing.assert_allclose(a, [[2, -2], [4, 2]])
    np.testing.assert_array_equal(number, [1, 3])
    assert picture.shape == (2, 6, 7, 1)
    np.testing.assert_allclose(picture[1, :, :, 0], np.where(columns()["picture"][1] == 200, 2.5, -5))


@pytest.mark.parametrize("space", [NESTED, spaces.Discrete(5), spaces.Box(-1, 1, (3,), np.float32)])
@pytest.mark.parametrize("widths", [(4,), (8, 4)])
def test_networks_have_an_error_for_each_observation(space, widths):
    scaled = ScaledObservations.of(space)
    networks = RandomNetworkDistillation(scaled.space, ModelConfig(), widths, rngs=nnx.Rngs(0))
    obs = jax.tree.map(lambda *parts: np.stack(parts), *[space.sample() for _ in range(3)])
    moments = {"mean": np.zeros(scaled.size, np.float32), "deviation": np.ones(scaled.size, np.float32)}
    assert networks(scaled.scaled(obs, moments)).shape == (3,)
    assert len(networks.predictor.mlp.layers) == len(networks.target.mlp.layers) + 2


def test_error_and_gradient_by_hand():
    # With weights of 0 and output biases (3, 1) and (1, 1) the error is ((3 - 1)² + (1 - 1)²) / 2 = 2. Its gradient is
    # (3 - 1, 0) in the predictor's bias, and 0 in the target's.
    space = spaces.Dict({"0": spaces.Discrete(2)})
    networks = RandomNetworkDistillation(space, ModelConfig(), (2, 2), rngs=nnx.Rngs(0))
    graph, state = nnx.split(networks)
    state = jax.tree.map(jnp.zeros_like, state)
    state["predictor"]["output"]["bias"][...] = f32(3, 1)
    state["target"]["output"]["bias"][...] = f32(1, 1)

    def error(state):
        return nnx.merge(graph, state)({"0": jnp.array([1])})[0]

    value, gradient = jax.value_and_grad(error)(state)
    assert value == 2
    np.testing.assert_allclose(gradient["predictor"]["output"]["bias"][...], [2, 0])
    np.testing.assert_array_equal(gradient["target"]["output"]["bias"][...], [0, 0])


@pytest.mark.parametrize("normalization", ["batch", "batch_renorm"])
def test_networks_have_no_running_statistics(normalization):
    config = ModelConfig(
        normalization=normalization, normalize_before_activation=True, normalize_observations=True, conv_dense=2
    )
    space = ScaledObservations.of(NESTED).space
    networks = RandomNetworkDistillation(space, config, (4,), rngs=nnx.Rngs(0))
    assert not nnx.state(networks, nnx.Not(nnx.Param))
