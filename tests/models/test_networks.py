import math
from collections import Counter
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.errors import ConfigError
from rollax.models.centralized_critic import CentralCritic
from rollax.models.config import Activation, ModelConfig
from rollax.models.images import CNN
from rollax.models.layers import ACTIVATIONS, MLP, orthogonal
from rollax.models.networks import ActorCritic

CARTPOLE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8)
MIXED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (7, 7, 3), np.uint8),
        "sensors": spaces.Tuple([spaces.Box(-1, 1, (3, 2), np.float32), spaces.Discrete(3, start=-1)]),
        "switches": spaces.MultiBinary(4),
        "gears": spaces.MultiDiscrete([2, 4]),
        "action_mask": spaces.MultiBinary(5),
    }
)
SMALL = {"conv_filters": ((4, 3, 2),), "conv_dense": 8, "fcnet_hiddens": (8,)}


def model_of(space: spaces.Space, num_outputs: int = 2, seed: int = 0, **config: Any) -> ActorCritic:
    return ActorCritic(space, num_outputs, ModelConfig(**config), rngs=nnx.Rngs(seed))


def set_weights(layer: nnx.Linear, kernel: list[list[float]], bias: list[float]) -> None:
    assert layer.bias is not None
    layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), jnp.asarray(bias)


def sampled(space: spaces.Space, rows: int) -> Any:
    """Columns of random observations."""
    space.seed(0)
    values = [space.sample() for _ in range(rows)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *values)


def forward_jaxpr(model: nnx.Module, obs: Any) -> Any:
    graphdef, state = nnx.split(model)
    return jax.make_jaxpr(lambda state, obs: nnx.merge(graphdef, state)(obs))(state, obs)


def parameter_count(model: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


class TestForwardByHand:
    def tiny(self, **config: Any) -> ActorCritic:
        model = model_of(spaces.Box(-9, 9, (2,), np.float32), fcnet_hiddens=(2,), fcnet_activation="relu", **config)
        set_weights(model.policy_trunk.mlp.layers[0], [[1.0, -1.0], [2.0, 0.5]], [0.5, 1.0])
        set_weights(model.value_head, [[1.0], [10.0]], [0.25])
        return model

    #   x          x W + b                            relu        policy: h0, 2 h1 + 1   value: h0 + 10 h1 + 0.25
    #   [1, 2]     [1+4+0.5, -1+1+1] = [5.5, 1]       [5.5, 1]    [5.5, 3]               15.75
    #   [3, -1]    [3-2+0.5, -3-0.5+1] = [1.5, -2.5]  [1.5, 0]    [1.5, 1]               1.75
    #   [-1, -1]   [-1-2+0.5, 1-0.5+1] = [-2.5, 1.5]  [0, 1.5]    [0, 4]                 15.25
    OBS = np.array([[1, 2], [3, -1], [-1, -1]], np.float32)

    def test_shared_layers(self):
        model = self.tiny(vf_share_layers=True)
        set_weights(model.policy_head, [[1.0, 0.0], [0.0, 2.0]], [0.0, 1.0])
        for call in (model, jax.jit(model)):
            dist_inputs, values = call(jnp.asarray(self.OBS))[:2]
            np.testing.assert_allclose(dist_inputs, [[5.5, 3], [1.5, 1], [0, 4]], rtol=1e-6)
            np.testing.assert_allclose(values, [15.75, 1.75, 15.25], rtol=1e-6)

    def test_separate_layers(self):
        model = self.tiny()
        assert model.value_trunk is not None
        set_weights(model.value_trunk.mlp.layers[0], [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
        # h = relu(x) = [1, 2], [3, 0], [0, 0]
        np.testing.assert_allclose(jax.jit(model)(self.OBS)[1], [21.25, 3.25, 0.25], rtol=1e-6)

    def test_free_log_std_begins_at_its_initial_value(self):
        model = model_of(spaces.Box(-9, 9, (2,), np.float32), 4, fcnet_hiddens=(), free_log_std=True, log_std_init=-2.0)
        np.testing.assert_array_equal(jax.jit(model)(self.OBS)[0][:, 2:], np.full((3, 2), -2.0))

    def test_free_log_std_follows_the_means(self):
        model = model_of(spaces.Box(-9, 9, (2,), np.float32), 4, fcnet_hiddens=(), free_log_std=True)
        assert model.log_std is not None
        model.log_std[...] = jnp.asarray([-1.0, 0.5])
        model.policy_head.kernel[...] = jnp.asarray([[1.0, 0.0], [1.0, 2.0]])
        # means x P = [1+2, 4], [3-1, -2], [-1-1, -2]; the same log standard deviations in every row
        expected = [[3, 4, -1, 0.5], [2, -2, -1, 0.5], [-2, -2, -1, 0.5]]
        np.testing.assert_allclose(jax.jit(model)(self.OBS)[0], expected, rtol=1e-6)

    def test_convolution(self):
        cnn = CNN((2, 3, 1), ((1, 2, 1),), 1, "linear", rngs=nnx.Rngs(0))
        cnn.convolutions[0].kernel[...] = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])[:, :, None, None]
        cnn.dense.kernel[...] = jnp.asarray([[1.0], [10.0]])
        # image [[1, 2, 3], [4, 5, 6]]: windows 1+4+12+20 = 37 and 2+6+15+24 = 47; dense 37 + 470
        images = np.arange(1, 7, dtype=np.float32).reshape(1, 2, 3, 1)
        np.testing.assert_allclose(jax.jit(cnn)(images), [[507]], rtol=1e-6)

    def test_normalized_convolution(self):
        cnn = CNN((1, 2, 1), ((2, 1, 1),), 2, "relu", "layer", rngs=nnx.Rngs(0))
        cnn.convolutions[0].kernel[...] = jnp.asarray([[1.0, -1.0]])[None, None]
        cnn.dense.kernel[...] = jnp.asarray([[1.0, 0.0], [0.0, 0.0], [0.0, 5.0], [0.0, 2.0]])
        # Pixels [100, -7]: channels (100, -100) and (-7, 7), at each position normalized to (1, -1) and (-1, 1), with
        # relu (1, 0) and (0, 1). Dense: (1, 2), normalized to (-1, 1), with relu (0, 1).
        images = np.array([100, -7], np.float32).reshape(1, 1, 2, 1)
        np.testing.assert_allclose(jax.jit(cnn)(images), [[0, 1]], rtol=1e-4)

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("tanh", math.tanh(-0.5)),
            ("relu", 0),
            ("elu", math.exp(-0.5) - 1),
            ("gelu", -0.5 * 0.5 * (1 + math.erf(-0.5 / math.sqrt(2)))),
            ("silu", -0.5 / (1 + math.exp(0.5))),
            ("linear", -0.5),
        ],
    )
    def test_activations(self, name, expected):
        mlp = MLP(1, (1,), name, rngs=nnx.Rngs(0))
        mlp.layers[0].kernel[...] = jnp.asarray([[1.0]])
        # JAX's gelu is the tanh approximation: it differs from the exact one in the fourth digit.
        rtol = 1e-3 if name == "gelu" else 1e-6
        np.testing.assert_allclose(jax.jit(mlp)(np.float32([[-0.5]])), [[expected]], rtol=rtol)

    def test_every_activation_of_the_config_exists(self):
        assert set(get_args(Activation)) == set(ACTIVATIONS)


class TestParameterCounts:
    @pytest.mark.parametrize(
        ("space", "config", "expected"),
        [
            # policy 4·64+64 + 64·64+64 + 64·2+2 = 4610, value 4·64+64 + 64·64+64 + 64+1 = 4545
            (CARTPOLE, {}, 9155),
            # one trunk 4·64+64 + 64·64+64 = 4480, heads 130 + 65
            (CARTPOLE, {"vf_share_layers": True}, 4675),
            # heads alone: 4·2+2 + 4+1
            (CARTPOLE, {"fcnet_hiddens": ()}, 15),
            # means alone in the head: 4·1+1, one free log standard deviation, value 5
            (CARTPOLE, {"fcnet_hiddens": (), "free_log_std": True}, 11),
            # 8·8·4·32+32 = 8224, 4·4·32·64+64 = 32832, 3·3·64·64+64 = 36928, 84 → 20 → 9 → 7: 7·7·64·512+512 = 1606144,
            # heads 512·2+2 + 513
            (ATARI, {"vf_share_layers": True}, 1685667),
            # 7 → 5 → 3: 3·3·3·16+16 = 448, 3·3·16·32+32 = 4640, 3·3·32·128+128 = 36992, heads 258 + 129
            (spaces.Box(0, 255, (7, 7, 3), np.uint8), {"vf_share_layers": True}, 42467),
            # 10 → 4 (kernel 3, stride 2): 3·3·1·4+4 = 40, 4·4·4·8+8 = 520, heads 18 + 9
            (spaces.Box(0, 1, (10, 10, 1), np.float32), {"vf_share_layers": True, **SMALL}, 587),
            # 3 · 5 · 2 = 30 → kernel 3 x 5 on 7 x 7, stride 2: 3 x 2; 3·5·3·2+2 = 92, 3·2·2·1+1 = 13, heads 4 + 2
            (
                spaces.Box(0, 255, (3, 7, 7), np.uint8),
                {"vf_share_layers": True, "conv_filters": [[2, [3, 5], 2]], "conv_dense": 1},
                111,
            ),
            # features 8 (camera: 3·3·3·4+4 = 112, 3·3·4·8+8 = 296) + 6 + 3 + 4 + 6 = 27; 27·8+8 = 224, heads 18 + 9
            (MIXED, {"vf_share_layers": True, **SMALL}, 659),
        ],
    )
    def test_by_hand(self, space, config, expected):
        model = nnx.eval_shape(lambda: model_of(space, **config))
        assert parameter_count(model) == expected

    @pytest.mark.short(every=3)
    @pytest.mark.parametrize("side", [5, 15, 16, 31, 32, 63, 64, 96])
    def test_default_convolutions_fit_every_size(self, side):
        space = spaces.Box(0, 255, (side, side + 2, 3), np.uint8)
        model = nnx.eval_shape(lambda: model_of(space))
        dist_inputs, values = nnx.eval_shape(lambda m: m(np.zeros((3, *space.shape), np.uint8)), model)[:2]
        assert (dist_inputs.shape, values.shape) == ((3, 2), (3,))
        assert 128 <= model.policy_trunk.features <= 512

    def test_kernels_that_do_not_fit_are_refused(self):
        with pytest.raises(ConfigError, match=r"Convolution 1 has a kernel larger(.|\n)*kernel 4 x 4 on 3 x 3"):
            CNN((7, 7, 3), ((8, 3, 2), (8, 4, 1)), rngs=nnx.Rngs(0))

    def test_free_log_std_needs_an_even_width(self):
        with pytest.raises(ConfigError, match="free_log_std"):
            model_of(CARTPOLE, 3, free_log_std=True)


class TestInitialization:
    @pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (3, 3, 2, 4), (7, 1), (1, 7)])
    def test_orthogonal(self, shape):
        kernel = orthogonal(3.0)(jax.random.key(0), shape)
        matrix = np.asarray(kernel).reshape(-1, shape[-1]) / 3
        gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        assert kernel.dtype == jnp.float32
        assert kernel.shape == shape
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-6)

    @pytest.mark.long
    def test_orthogonal_has_random_signs(self):
        corners = [float(orthogonal(1.0)(jax.random.key(seed), (2, 2))[0, 0]) for seed in range(200)]
        # A uniform angle: the mean of cos is 0 and of its square 1/2, with standard errors 0.05 and 0.025.
        assert abs(np.mean(corners)) < 0.2
        assert abs(np.mean(np.square(corners)) - 0.5) < 0.1

    def test_orthogonal_under_a_trace(self):
        kernel = jax.jit(lambda key: orthogonal(2.0)(key, (6, 4)))(jax.random.key(0))
        np.testing.assert_allclose(kernel.T @ kernel, 4 * np.eye(4), atol=1e-5)

    def test_gains_and_biases(self):
        model = model_of(CARTPOLE, fcnet_hiddens=(8, 6))
        assert model.value_trunk is not None
        gains = {
            math.sqrt(2): [*model.policy_trunk.mlp.layers, *model.value_trunk.mlp.layers],
            0.01: [model.policy_head],
            1.0: [model.value_head],
        }
        for gain, layers in gains.items():
            for layer in layers:
                singular_values = np.linalg.svd(np.asarray(layer.kernel[...]), compute_uv=False)
                np.testing.assert_allclose(singular_values, gain, rtol=1e-5)
                assert layer.bias is not None
                np.testing.assert_array_equal(layer.bias[...], 0)

    def test_the_same_rngs_give_the_same_weights(self):
        weights = [jax.tree.leaves(nnx.state(model_of(MIXED, seed=seed, **SMALL))) for seed in (1, 1, 2)]
        same = [np.array_equal(a, b) for a, b in zip(weights[0], weights[1], strict=True)]
        other = [np.array_equal(a, b) for a, b in zip(weights[0], weights[2], strict=True) if a.ndim > 1]
        assert all(same)
        assert not any(other)

    def test_layers_differ(self):
        model = model_of(CARTPOLE)
        assert model.value_trunk is not None
        policy, value = model.policy_trunk.mlp.layers[1].kernel[...], model.value_trunk.mlp.layers[1].kernel[...]
        assert not np.allclose(policy, value)


class TestCompiled:
    def test_a_flat_box_is_matrix_products_and_tanh(self):
        jaxpr = forward_jaxpr(model_of(CARTPOLE), np.zeros((3, 4), np.float32))
        counts = Counter(equation.primitive.name for equation in jaxpr.eqns)
        reshaped = [equation.invars[0].aval.ndim for equation in jaxpr.eqns if equation.primitive.name == "reshape"]
        assert counts == {"dot_general": 6, "add": 6, "tanh": 4, "reshape": 6, "squeeze": 1}
        assert reshaped == [1] * 6  # biases only

    def test_images_are_passed_as_bytes(self):
        model = nnx.eval_shape(lambda: model_of(ATARI, vf_share_layers=True))
        jaxpr = forward_jaxpr(model, np.zeros((2, 84, 84, 4), np.uint8))
        (obs,) = (each for each in jaxpr.jaxpr.invars if each.aval.ndim == 4 and each.aval.shape[0] == 2)
        users = [equation for equation in jaxpr.eqns if obs in equation.invars]
        assert obs.aval.dtype == jnp.uint8
        (user,) = users
        assert (user.primitive.name, user.outvars[0].aval.dtype) == ("convert_element_type", jnp.float32)

    def test_channels_first_is_transposed_as_bytes(self):
        model = model_of(spaces.Box(0, 255, (3, 8, 8), np.uint8), vf_share_layers=True, **SMALL)
        jaxpr = forward_jaxpr(model, np.zeros((2, 3, 8, 8), np.uint8))
        (transposed,) = (equation for equation in jaxpr.eqns if equation.primitive.name == "transpose")
        assert transposed.outvars[0].aval.dtype == jnp.uint8

    @pytest.mark.parametrize("config", [{}, {"vf_share_layers": True}, {"free_log_std": True}])
    def test_gradients_reach_every_parameter(self, config):
        graphdef, params = nnx.split(model_of(MIXED, 4, **SMALL, **config))
        obs = sampled(MIXED, 32)

        def loss(params: Any) -> jax.Array:
            dist_inputs, values = nnx.merge(graphdef, params)(obs)[:2]
            return jnp.sum(dist_inputs**2 + dist_inputs) + jnp.sum(values)

        gradients = jax.jit(jax.grad(loss))(params)
        for path, gradient in jax.tree.leaves_with_path(gradients):
            assert np.isfinite(gradient).all(), path
            assert np.abs(gradient).max() > 0, path

    def test_value_gradients_reach_policy_layers_only_if_shared(self):
        for share in (False, True):
            graphdef, params = nnx.split(model_of(CARTPOLE, fcnet_hiddens=(4,), vf_share_layers=share))
            obs = sampled(CARTPOLE, 3)
            loss = lambda params: nnx.merge(graphdef, params)(obs)[1].sum()  # noqa: B023, E731
            gradients = jax.jit(jax.grad(loss))(params)
            reached = np.abs(gradients["policy_trunk"]["mlp"]["layers"][0]["kernel"][...]).max() > 0
            assert reached == share

    def test_the_graph_can_be_a_static_argument(self):
        (first, _), (second, _) = (nnx.split(model_of(MIXED, seed=seed, **SMALL)) for seed in (1, 2))
        assert hash(first) == hash(second)
        assert first == second

    def test_parameters_are_the_only_state(self):
        _, params, rest = nnx.split(model_of(MIXED, free_log_std=True, **SMALL), nnx.Param, ...)
        assert len(jax.tree.leaves(rest)) == 0
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(("kernel", "stride"), [((3, 2), 1), ((4, 4), 2), ((2, 3), 3)])
def test_convolutions_on_the_cpu_equal_those_of_flax(kernel, stride):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(3, 9, 11, 5)).astype(np.float32)
    network = CNN((9, 11, 5), [(7, kernel, stride)], 6, "linear", rngs=nnx.Rngs(0))
    (layer,) = network.convolutions
    layer.bias[...] = jnp.arange(7, dtype=jnp.float32)
    found, expected = jax.jit(lambda x: (network(x), network.dense(layer(x).reshape(3, -1))))(images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


AGENTS, ROWS = 3, 5
PART_OF_OTHER = spaces.Dict({"obs": spaces.Box(-1, 1, (2,), np.float32), "actions": spaces.Discrete(4)})
CRITIC_SPACE = spaces.Dict(
    {
        "agent": spaces.Discrete(AGENTS),
        "obs": spaces.Box(-1, 1, (2,), np.float32),
        "other": spaces.Dict({"presence": spaces.Discrete(3), "parts": spaces.Tuple([PART_OF_OTHER])}),
    }
)


def critic(agents: int = AGENTS) -> CentralCritic:
    space = spaces.Dict({**CRITIC_SPACE.spaces, "agent": spaces.Discrete(agents)})
    return CentralCritic(space, ModelConfig(fcnet_hiddens=(8,)), rngs=nnx.Rngs(0))


def critic_columns() -> dict:
    random = np.random.default_rng(0)
    others = (ROWS, AGENTS - 1)
    part = {"obs": random.uniform(-1, 1, (*others, 2)).astype(np.float32), "actions": random.integers(0, 4, others)}
    return {
        "agent": random.integers(0, AGENTS, ROWS),
        "obs": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "other": {"presence": random.integers(0, 3, others), "parts": (part,)},
    }


CRITIC_INPUTS = {
    "agent": lambda columns: columns["agent"],
    "own observation": lambda columns: columns["obs"],
    "presence": lambda columns: columns["other"]["presence"],
    "observations of others": lambda columns: columns["other"]["parts"][0]["obs"],
    "actions of others": lambda columns: columns["other"]["parts"][0]["actions"],
}


def critic_values(columns: dict, model: CentralCritic | None = None) -> np.ndarray:
    return np.asarray(jax.jit(model or critic())(columns))


@pytest.mark.parametrize("name", CRITIC_INPUTS)
def test_each_input_changes_its_own_row(name):
    columns, model = critic_columns(), critic()
    before = critic_values(columns, model)
    assert before.shape == (ROWS,)
    leaf = CRITIC_INPUTS[name](columns)
    leaf[2] = leaf[2] + 1 if leaf.dtype == np.float32 else (leaf[2] + 1) % 3
    changed = np.abs(critic_values(columns, model) - before) > 1e-6
    assert changed.tolist() == [False, False, True, False, False]


def test_order_of_the_others_matters():
    columns = critic_columns()
    swapped = {**columns, "other": jax.tree.map(lambda leaf: leaf[:, ::-1], columns["other"])}
    assert np.abs(critic_values(swapped) - critic_values(columns)).min() > 1e-6


def test_number_of_layers_is_independent_of_the_agents():
    few, many = (nnx.to_flat_state(nnx.state(critic(agents), nnx.Param)) for agents in (2, 100))
    assert [path for path, _ in few] == [path for path, _ in many]
