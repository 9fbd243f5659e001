"""Batch renormalization and running statistics against numbers derived by hand, in JAX and PyTorch, and their keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from gymnasium import spaces

from examples.torch_ppo import TorchPPO
from examples.torch_sac import TorchSAC
from rollax import DDPG, DQN, SAC, ConfigError
from rollax.algorithms.ppo import PPO
from rollax.models.batch_renorm import BatchRenorm
from rollax.models.layers import MLP
from rollax.models.simba import RunningNorm
from rollax.torch import layers as torch_layers
from tests.marks import long_except
from tests.policy.small_ppo import experience
from tests.policy.test_steps_by_part import replayed

# Columns with means 2, 20, 0.1 and standard deviations 2, 20, 0.1; the running ones are 0 and 1 at first.
X = np.array([[0, 0, 0], [4, 40, 0.2]], np.float32)
MEANS, VARIANCES = np.array([2, 20, 0.1]), np.array([4, 400, 0.01])


class OfJax:
    """The layer with ε = 0 and momentum 0.75, γ = 2 and β = 1."""

    def __init__(self, warm_up: int, features: int = 3) -> None:
        layer = BatchRenorm(features, momentum=0.75, epsilon=0.0, warm_up=warm_up)
        layer.scale[...], layer.bias[...] = jnp.full(features, 2.0), jnp.ones(features)
        self.layer = layer

    def __call__(self, x, training=True):
        self.layer.set_attributes(use_running_average=not training)

        @nnx.jit
        def call(layer, x):
            return layer(x)

        return np.asarray(call(self.layer, x))

    def gradient(self, x, weights):
        graph, state = nnx.split(self.layer)
        return jax.jit(jax.grad(lambda x: (nnx.merge(graph, state, copy=True)(x) * weights).sum()))(x)

    @property
    def state(self):
        return [np.asarray(part[...]) for part in (self.layer.mean, self.layer.var, self.layer.calls)]


class OfTorch:
    """As `OfJax`."""

    def __init__(self, warm_up: int, features: int = 3) -> None:
        self.layer = torch_layers.BatchRenorm(features, warm_up=warm_up)
        self.layer.momentum, self.layer.eps = 0.25, 0.0
        torch.nn.init.constant_(self.layer.weight, 2.0)
        torch.nn.init.constant_(self.layer.bias, 1.0)

    def __call__(self, x, training=True):
        return self.layer.train(training)(torch.as_tensor(x)).detach().numpy()

    def gradient(self, x, weights):
        x = torch.tensor(x, requires_grad=True)
        (self.layer(x) * torch.as_tensor(weights)).sum().backward()
        assert x.grad is not None
        return x.grad.numpy()

    @property
    def state(self):
        layer = self.layer
        return [part.numpy().copy() for part in (layer.running_mean, layer.running_var, layer.num_batches_tracked)]


@pytest.mark.parametrize("kind", [OfJax, OfTorch])
class TestBatchRenorm:
    def test_during_the_warm_up_it_is_batch_normalization(self, kind):
        layer = kind(warm_up=2)
        for _ in range(2):  # x̂ = -1 and 1, and 2 x̂ + 1
            np.testing.assert_allclose(layer(X), [[-1] * 3, [3] * 3], rtol=1e-5)
        # After the first call 0.25 of the batch and 0.75 of the start; after the second 0.4375 and 0.5625.
        mean, variance, calls = layer.state
        np.testing.assert_allclose(mean, 0.4375 * MEANS, rtol=1e-5)
        np.testing.assert_allclose(variance, 0.4375 * VARIANCES + 0.5625, rtol=1e-5)
        assert calls == 2

    def test_afterwards_outputs_are_limited(self, kind):
        # μ = 0, σ = 1:      r          d       x̂ = ∓r + d
        #   column 0         2          2       0, 4         as with the running statistics
        #   column 1    20 → 3     20 → 5       2, 8
        #   column 2  0.1 → ⅓        0.1        -0.2333, 0.4333
        expected = np.array([[0, 2, 0.1 - 1 / 3], [4, 8, 0.1 + 1 / 3]])
        np.testing.assert_allclose(kind(warm_up=0)(X), 2 * expected + 1, rtol=1e-5)
        np.testing.assert_allclose(kind(warm_up=0)(-X), -2 * expected + 1, rtol=1e-5)

    def test_the_limits_are_of_the_statistics_before_the_call(self, kind):
        layer = kind(warm_up=1)
        layer(X)
        # μ = 0.5, σ² = 0.75 + 0.25 · 4 = 1.75: within the limits x̂ = (x - μ) / σ.
        np.testing.assert_allclose(layer(X)[:, 0], 2 * (X[:, 0] - 0.5) / np.sqrt(1.75) + 1, rtol=1e-5)

    def test_evaluation_uses_the_running_statistics_unchanged(self, kind):
        layer = kind(warm_up=0)
        layer(X)
        before = layer.state
        expected = (X - 0.25 * MEANS) / np.sqrt(0.75 + 0.25 * VARIANCES)
        np.testing.assert_allclose(layer(X, training=False), 2 * expected + 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(layer(X[:1], training=False), 2 * expected[:1] + 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_equal(layer.state, before)

    def test_r_and_d_are_constant(self, kind):
        # x = 0, 3, 6: μ_B = 3, σ_B = r = √6, and r / σ_B = 1. For the loss 2 x̂_3 the gradient of normalization is
        # 2 r / σ_B (c - mean(c) - x̂ mean(c x̂)) with c = 0, 0, 1 and x̂ = -√1.5, 0, √1.5:
        #   c - ⅓ - x̂ √1.5 / 3 = ⅙, -⅓, ⅙.  With a gradient of r and d it would be 2, at the last row only.
        x, by_row = (np.array(column, np.float32)[:, None] for column in ([0, 3, 6], [0, 0, 1]))
        gradient = kind(warm_up=0, features=1).gradient(x, by_row)
        np.testing.assert_allclose(np.asarray(gradient)[:, 0], [1 / 3, -2 / 3, 1 / 3], atol=1e-5)


class RunningOfJax:
    def __init__(self, **options) -> None:
        self.layer = RunningNorm(2, **options)

    def __call__(self, x, training=True):
        self.layer.set_attributes(use_running_average=not training)
        return np.asarray(nnx.jit(lambda layer, x: layer(x))(self.layer, np.array(x, np.float32)))

    def gradient(self, x):
        graph, state = nnx.split(self.layer)
        return jax.jit(jax.grad(lambda x: nnx.merge(graph, state, copy=True)(x)[0].sum()))(np.array(x, np.float32))

    @property
    def state(self):
        return [np.asarray(part[...]) for part in (self.layer.mean, self.layer.var, self.layer.calls)]


class RunningOfTorch:
    def __init__(self, **options) -> None:
        self.layer = torch_layers.RunningNorm(2, **options)

    def __call__(self, x, training=True):
        return self.layer.train(training)(torch.tensor(x, dtype=torch.float32)).numpy()

    def gradient(self, x):
        rows = torch.tensor(x, dtype=torch.float32, requires_grad=True)
        self.layer.train()(rows)[0].sum().backward()
        assert rows.grad is not None
        return rows.grad.numpy()

    @property
    def state(self):
        return [part.numpy().copy() for part in (self.layer.mean, self.layer.var, self.layer.calls)]


@pytest.mark.parametrize("kind", [RunningOfJax, RunningOfTorch])
class TestRunningNorm:
    first = ((0.0, 0.0), (4.0, 40.0))  # the means 2 and 20, the variances 4 and 400
    second = ((6.0, 20.0), (6.0, 20.0))

    def test_statistics_are_of_all_calls(self, kind):
        norm = kind()
        np.testing.assert_allclose(norm(self.first), [[-1, -1], [1, 1]], rtol=1e-5)
        # The means 2 and 6 have the mean 4; ½ (4 + 2²) + ½ (0 + 2²) = 6. The means 20 and 20: ½ 400.
        np.testing.assert_allclose(norm(self.second), [[2 / 6**0.5, 0]] * 2, rtol=1e-5, atol=1e-6)
        mean, variance, calls = norm.state
        np.testing.assert_allclose(mean, [4, 20], rtol=1e-6)
        np.testing.assert_allclose(variance, [6, 200], rtol=1e-5)
        assert calls == 2

    def test_after_the_horizon_older_calls_count_less(self, kind):
        norm = kind(horizon=2)
        for rows in (self.first, self.first, self.second):
            norm(rows)
        # As if the first two calls were one: ½ instead of ⅓ of the last one.
        mean, variance, calls = norm.state
        np.testing.assert_allclose(mean, [4, 20], rtol=1e-6)
        np.testing.assert_allclose(variance, [6, 200], rtol=1e-5)
        assert calls == 2

    def test_evaluation_uses_the_statistics_unchanged(self, kind):
        norm = kind()
        np.testing.assert_array_equal(norm(self.first, training=False), [[0, 0], [4, 10]])  # (x - 0) / 1, within ±10
        norm(self.first)
        before = norm.state
        np.testing.assert_allclose(norm([[6.0, 20.0]], training=False), [[2, 0]], rtol=1e-5, atol=1e-6)
        np.testing.assert_equal(norm.state, before)

    def test_a_constant_column_becomes_0(self, kind):
        np.testing.assert_array_equal(kind()([[3.0, 1.0], [3.0, 2.0]])[:, 0], 0)

    def test_statistics_are_constant_in_gradients(self, kind):
        # 1 / σ for the first row, whose outputs are summed. Through the statistics the second row had one too.
        np.testing.assert_allclose(kind().gradient(self.first), [[0.5, 0.05], [0, 0]], rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "norms"), [(None, []), ("layer", [3, 2]), ("batch", [4, 3, 2]), ("batch_renorm", [4, 3, 2])]
)
def test_what_an_mlp_normalizes(kind, norms):
    ours = MLP(4, (3, 2), "relu", kind, rngs=nnx.Rngs(0))
    twin = torch_layers.MLP(4, (3, 2), "relu", kind)
    assert [norm.scale.shape[0] for norm in ours.norms] == [len(norm.weight) for norm in twin.norms] == norms
    x = np.random.default_rng(0).normal(5, 2, (64, 4)).astype(np.float32)
    ours.train()
    out = np.asarray(nnx.jit(lambda mlp, x: mlp(x))(ours, x))
    # What follows the last activation is normalized: by row, or by column.
    if kind is not None:
        axis = 1 if kind == "layer" else 0
        np.testing.assert_allclose(out.mean(axis=axis), 0, atol=1e-5)


def test_normalization_before_the_activation():
    # The layer's outputs are 3, -3 and 6: their mean is 2, and their variance (1 + 25 + 16) / 3 = 14.
    mlp = MLP(1, (3,), "relu", "layer", norm_first=True, rngs=nnx.Rngs(0))
    mlp.layers[0].kernel[...] = jnp.array([[1.0, -1.0, 2.0]])
    out = jax.jit(mlp)(np.array([[3.0]], np.float32))
    np.testing.assert_allclose(out[0], np.maximum(np.array([1, -5, 4]) / 14**0.5, 0), rtol=1e-5)


BOX, CHOICES, SEEN = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3), spaces.Box(-1, 1, (3,), np.float32)
ALGORITHMS = {
    "PPO": (PPO, CHOICES, {"sgd_minibatch_size": 8, "num_sgd_iter": 2}),
    "TorchPPO": (TorchPPO, CHOICES, {"sgd_minibatch_size": 8, "num_sgd_iter": 2}),
    "DQN": (DQN, CHOICES, {"train_batch_size": 8}),
    "DDPG": (DDPG, BOX, {"train_batch_size": 8}),
    "SAC": (SAC, BOX, {"train_batch_size": 8}),
    "TorchSAC": (TorchSAC, BOX, {"train_batch_size": 8}),
}


def batch_for(policy):
    if isinstance(policy.algorithm, PPO | TorchPPO):
        return experience(policy, 16)
    batch = replayed(16)
    if isinstance(policy.action_space, spaces.Discrete):
        batch["actions"] = np.arange(16) % policy.action_space.n
    return batch


KINDS = {
    "batch_renorm": {"normalization": "batch_renorm"},
    "batch": {"normalization": "batch"},
    "observations": {"normalize_observations": True},
}


@pytest.mark.short("PPO-observations")
@pytest.mark.parametrize("kind", ["batch_renorm", "observations", pytest.param("batch", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", long_except({"PPO", "SAC"}, list(ALGORITHMS)))
def test_statistics_are_weights_that_learning_changes(name, kind):
    base, actions, config = ALGORITHMS[name]
    config = {**config, "seed": 0, "model": {"fcnet_hiddens": (4,), **KINDS[kind]}}
    policy, other = (base.make_policy(SEEN, actions, config) for _ in range(2))
    means = [name for name in policy.get_weights() if name.endswith("mean")]
    assert means
    before = policy.get_weights()
    policy.learn_on_batch(batch_for(policy))
    after = policy.get_weights()
    assert all(not np.array_equal(after[name], before[name]) for name in means)

    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    other.set_weights(after)
    greedy = policy.compute_actions(obs, explore=False)[0]
    np.testing.assert_array_equal(greedy, other.compute_actions(obs, explore=False)[0])
    # A row's action does not depend on the other rows, and acting changes nothing.
    np.testing.assert_allclose(policy.compute_actions(obs[:1], explore=False)[0], greedy[:1], rtol=1e-5, atol=1e-7)
    policy.compute_actions(obs)
    np.testing.assert_equal(policy.get_weights(), after)

    other.set_state(policy.get_state())
    for one in (policy, other):
        one.learn_on_batch(batch_for(one))
    np.testing.assert_equal(policy.get_weights(), other.get_weights())


@pytest.mark.parametrize("memory", ["use_lstm", "use_gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_statistics_with_memory_are_refused(memory, kind):
    with pytest.raises(ConfigError, match="normalization"):
        PPO.make_policy(SEEN, CHOICES, {"model": {memory: True, **KINDS[kind]}})
    with pytest.raises(ConfigError, match="critic_model.normalization"):
        SAC.make_policy(SEEN, BOX, {"model": {memory: True}, "critic_model": KINDS[kind]})


def test_only_observations_of_floats_are_standardized():
    image = spaces.Box(0, 1, (8, 8, 1), np.float32)
    whole, bits = spaces.Box(0, 9, (2,), np.int32), spaces.Box(0, 255, (2,), np.uint8)
    space = spaces.Dict({"x": SEEN, "image": image, "whole": whole, "bits": bits, "choice": CHOICES})
    policy = PPO.make_policy(space, CHOICES, {"model": {"fcnet_hiddens": (4,), "normalize_observations": True}})
    means = {name: value.shape for name, value in policy.get_weights().items() if name.endswith("mean")}
    assert sorted(means.values()) == [(3,), (3,)], means  # of actor and critic


@pytest.mark.long
def test_replayed_observations_get_the_current_statistics():
    # Actors and critics standardize the observations of the batch, and actions stay as they are.
    model = {"fcnet_hiddens": (4,), "normalize_observations": True}
    policy = SAC.make_policy(SEEN, BOX, {"train_batch_size": 8, "model": model})
    batch = replayed(8)
    policy.learn_on_batch(batch)
    weights = policy.get_weights()
    parts = {name: value for name, value in weights.items() if name.endswith(".norm.mean")}
    assert {name.partition(".")[0] for name in parts} == {"actor", "critics"}
    for name, value in parts.items():
        assert value.shape[-1] == 3
        for member in np.atleast_2d(value):
            np.testing.assert_allclose(member, batch["obs"].mean(axis=0), atol=1e-6, err_msg=name)
