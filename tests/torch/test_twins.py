"""Twins equal their originals in JAX: values and gradients for random inputs."""

import functools
import math
import pickle
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from gymnasium import spaces

import rollax.torch.losses as twins
from rollax.errors import ShapeError
from rollax.models import catalog
from rollax.models.actor_with_critics import ActionValue
from rollax.models.centralized_critic import CentralCritic
from rollax.models.config import Activation, ModelConfig
from rollax.models.distributions import factory
from rollax.models.outputs import run_model
from rollax.models.q_network import QNetwork
from rollax.ops import actor_critic, policy_gradient, q_learning, values
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.mask_checks import are_allowed
from rollax.policy.split_model import SplitModel
from rollax.torch import distributions, networks
from tests.torch.torch_weights import copy_weights, torch_weights

NEAR = {"rtol": 1e-5, "atol": 1e-5}
B = 7
SPACES = {
    "Discrete": spaces.Discrete(4, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 5], start=[0, 5, 1]),
    "MultiBinary": spaces.MultiBinary([2, 2]),
    "Box": spaces.Box(-1, 1, (2, 3), np.float32),
    "Dict": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)])}),
}


def normal(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def both(in_jax, in_torch, *inputs):
    """Asserts that two functions of arrays have equal results and equal gradients of their sums."""

    @jax.jit
    def compiled(*arrays):
        gradients = jax.grad(lambda *arrays: in_jax(*arrays).sum(), argnums=tuple(range(len(arrays))))
        return in_jax(*arrays), gradients(*arrays)

    expected, gradients = compiled(*inputs)
    tensors = [torch.tensor(array, requires_grad=True) for array in inputs]
    got = in_torch(*tensors)
    np.testing.assert_allclose(got.detach().numpy(), expected, **NEAR)
    for one, other in zip(torch.autograd.grad(got.sum(), tensors, allow_unused=True), gradients, strict=True):
        np.testing.assert_allclose(np.zeros_like(other) if one is None else one.numpy(), other, **NEAR)


class TestDistributions:
    @pytest.mark.long
    @pytest.mark.parametrize("squash", [False, True])
    @pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
    def test_equal(self, space, squash):
        ours, twin = (made.make_distribution(space, squash=squash) for made in (factory, distributions))
        assert (twin.num_inputs, twin.num_noise, twin.num_mask) == (ours.num_inputs, ours.num_noise, ours.num_mask)
        inputs, other = normal(B, ours.num_inputs), normal(B, ours.num_inputs, seed=1)
        noise = np.random.default_rng(2).random((B, ours.num_noise), np.float32)
        for name, arguments in (("sample", (inputs, noise)), ("mode", (inputs,))):
            expected = jax.tree.leaves(jax.jit(getattr(ours, name))(*arguments))
            got = jax.tree.leaves(getattr(twin, name)(*arguments))
            for one, two in zip(got, expected, strict=True):
                np.testing.assert_allclose(one.numpy(), two, **NEAR)
                assert one.numpy().dtype == two.dtype
        actions = jax.jit(ours.sample)(inputs, noise)
        taken = jax.tree.map(np.asarray, actions)
        both(lambda x: ours.logp(x, actions), lambda x: twin.logp(x, taken), inputs)
        both(ours.entropy, twin.entropy, inputs)
        both(ours.kl, twin.kl, inputs, other)
        drawn = jnp.asarray(noise), torch.tensor(noise)
        both(lambda x: ours.sample_and_logp(x, drawn[0])[1], lambda x: twin.sample_and_logp(x, drawn[1])[1], inputs)
        if ours.num_mask:
            mask = np.random.default_rng(3).integers(0, 2, (B, ours.num_mask)).astype(np.int8)
            both(lambda x: ours.mask(x, jnp.asarray(mask)), lambda x: twin.mask(x, torch.tensor(mask)), inputs)

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
    @pytest.mark.parametrize("kind", [spaces.Discrete, spaces.MultiDiscrete])
    def test_recorded_actions_have_the_dtype_of_their_space(self, kind, dtype):
        space = kind(2, start=4, dtype=dtype) if kind is spaces.Discrete else kind([2], start=[4], dtype=dtype)
        logp = distributions.make_distribution(space).logp(
            torch.zeros(1, 2), np.full((1, *(space.shape or ())), 5, dtype)
        )
        assert logp.item() == pytest.approx(-math.log(2))

    @pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
    def test_no_rows(self, space):
        twin = distributions.make_distribution(space)
        inputs, noise = torch.zeros(0, twin.num_inputs), torch.zeros(0, twin.num_noise)
        actions = twin.sample(inputs, noise)
        assert twin.logp(inputs, actions).shape == (0,)

    @pytest.mark.long
    def test_masks_of_zeros_and_minus_infinity(self):
        space, logits = spaces.Discrete(3), np.array([[1.0, -np.inf, 2.0], [0.5, 1.0, -1.0]], np.float32)
        original, twin = factory.make_distribution(space), distributions.make_distribution(space)
        mask = np.array([[1, 1, 1], [0, 0, 0]])
        masked = original.mask(jnp.asarray(logits), jnp.asarray(mask))
        np.testing.assert_array_equal(masked, twin.mask(torch.tensor(logits), mask))
        for name in ("entropy", "kl"):
            arguments = (logits,) if name == "entropy" else (logits, np.zeros_like(logits))
            expected = getattr(original, name)(*map(jnp.asarray, arguments))
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(getattr(twin, name)(*map(torch.tensor, arguments)), expected, **NEAR)

    @pytest.mark.parametrize("low", [-1e31, -3e38, -np.inf])
    @pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 4])], ids=str)
    def test_masked_choices_have_probability_zero(self, space, low):
        original, twin = factory.make_distribution(space), distributions.make_distribution(space)
        mask = np.array([[0, 1, 0, 1, 0, 1][: original.num_mask]] * 32)
        logits = np.where(mask, low, 0.0).astype(np.float32)
        kept = twin.mask(torch.tensor(logits), mask)
        np.testing.assert_array_equal(original.mask(jnp.asarray(logits), jnp.asarray(mask)), kept)
        noise = normal(32, twin.num_noise)
        noise = np.abs(noise) % 1
        noise[0], noise[1] = 0, 1
        for actions in (twin.sample(kept, noise), twin.mode(kept)):
            assert are_allowed(mask, np.asarray(actions), space).all()
        invalid = np.zeros((32, *space.shape), np.int64)
        for name, arguments in {"entropy": (), "kl": (np.zeros_like(logits),), "logp": (invalid,)}.items():
            expected = getattr(original, name)(jnp.asarray(kept), *map(jnp.asarray, arguments))
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(getattr(twin, name)(kept, *map(torch.tensor, arguments)), expected, **NEAR)
        inputs = torch.tensor(logits, requires_grad=True)
        (twin.entropy(twin.mask(inputs, mask)) + twin.logp(twin.mask(inputs, mask), invalid)).sum().backward()
        assert inputs.grad is not None
        assert inputs.grad.isfinite().all()

    def test_a_choice_out_of_range_is_impossible(self):
        twin = distributions.Categorical(3, start=1)
        assert twin.logp(torch.zeros(2, 3), torch.tensor([0, 4])).tolist() == pytest.approx([-1e30, -1e30])


MASK = jnp.asarray([1, 1, 0, 1, 0, 1, 1], jnp.float32)
VALID = torch.tensor([1.0, 1, 0, 1, 0, 1, 1])


class TestLosses:
    def test_masked_mean(self):
        both(lambda x: masked_mean(x, MASK), lambda x: twins.masked_mean(x, VALID), normal(B))
        with_nan = np.where(np.asarray(MASK) > 0, normal(B), np.nan).astype(np.float32)
        both(lambda x: masked_mean(x, MASK), lambda x: twins.masked_mean(x, VALID), with_nan)

    @pytest.mark.parametrize(
        "loss",
        [
            lambda x, wide: twins.masked_mean(wide, VALID),
            lambda x, wide: twins.policy_gradient_loss(x, wide, VALID),
            lambda x, wide: twins.clipped_surrogate(x, x, wide, VALID, clip=0.2),
            lambda x, wide: twins.value_loss(wide, x, VALID),
            lambda x, wide: twins.explained_variance(x, wide, VALID),
            lambda x, wide: twins.q_target(x, wide, torch.ones(B, 2), torch.ones(B, 2)),
            lambda x, wide: twins.td_target(x, x, wide),
            lambda x, wide: twins.twin_errors(torch.stack([wide, wide]), x, x, VALID),
            lambda x, wide: twins.temperature_loss(x[0], wide, -1.0, VALID),
        ],
    )
    def test_columns_of_another_shape_do_not_broadcast(self, loss):
        """[B, 1] - [B] would be [B, B]: a model that returns values [B, 1] is a common mistake."""
        with pytest.raises(ShapeError, match="differ in shape"):
            loss(torch.ones(B), torch.ones(B, 1))

    def test_policy_gradient(self):
        ours, twin = policy_gradient.policy_gradient_loss, twins.policy_gradient_loss
        both(lambda x, a: ours(x, a, MASK), lambda x, a: twin(x, a, VALID), normal(B), normal(B, seed=1))

    def test_clipped_surrogate(self):
        ours, twin = policy_gradient.clipped_surrogate, twins.clipped_surrogate
        arguments = normal(B, scale=0.3), normal(B, seed=1, scale=0.3), normal(B, seed=2)
        both(lambda *x: ours(*x, MASK, clip=0.2), lambda *x: twin(*x, VALID, clip=0.2), *arguments)
        # The gradient is finite with an infinite ratio where the clip binds.
        far = np.full(B, 1000.0, np.float32), np.zeros(B, np.float32), np.ones(B, np.float32)
        both(lambda *x: ours(*x, MASK, clip=0.2), lambda *x: twin(*x, VALID, clip=0.2), *far)

    @pytest.mark.parametrize("limit", [None, 0.5])
    def test_values(self, limit):
        arguments, clip = (normal(B), normal(B, seed=1)), {"vf_clip_param": limit}
        both(lambda *x: values.value_loss(*x, MASK, **clip), lambda *x: twins.value_loss(*x, VALID, **clip), *arguments)
        for targets in (arguments[0], np.ones(B, np.float32)):
            expected = values.explained_variance(*map(jnp.asarray, (targets, arguments[1])), MASK)
            got = twins.explained_variance(*map(torch.tensor, (targets, arguments[1])), VALID)
            np.testing.assert_allclose(got, expected, **NEAR)

    def test_q_learning(self):
        actions = np.array([0, 2, 1, 1, 0, 2, 2])
        both(
            lambda x: q_learning.huber(q_learning.chosen(x, jnp.asarray(actions))),
            lambda x: twins.huber(twins.chosen(x, torch.tensor(actions))),
            normal(B, 3, scale=2.0),
        )
        arguments = normal(B), np.full(B, 0.9, np.float32), normal(B, 3, seed=1), normal(B, 3, seed=2)
        got = twins.q_target(*map(torch.tensor, arguments))
        np.testing.assert_allclose(got, q_learning.q_target(*map(jnp.asarray, arguments)), **NEAR)

    def test_actor_critic(self):
        ours, twin = actor_critic.twin_errors, twins.twin_errors
        arguments = normal(2, B), normal(B, seed=1), np.abs(normal(B, seed=2))
        both(lambda *x: ours(*x, MASK)[0], lambda *x: twin(*x, VALID)[0], *arguments)
        entropy = np.full(B, -1.0, np.float32)
        both(
            lambda a, x: actor_critic.temperature_loss(a, x, jnp.asarray(entropy), MASK),
            lambda a, x: twins.temperature_loss(a, x, torch.tensor(entropy), VALID),
            np.float32(0.3),
            normal(B),
        )
        arguments = normal(B), np.full(B, 0.9, np.float32), normal(B, seed=1)
        got = twins.td_target(*map(torch.tensor, arguments))
        np.testing.assert_allclose(got, actor_critic.td_target(*map(jnp.asarray, arguments)), **NEAR)


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
WHOLE = {"n": spaces.MultiDiscrete([3, 2], start=[1, 0]), "bytes": spaces.Box(0, 255, (4,), np.uint8)}
NESTED = spaces.Dict({"x": VECTOR, **WHOLE, "bits": spaces.MultiBinary(3)})
IMAGE = spaces.Box(0, 255, (3, 12, 10), np.uint8)
FRAMES = spaces.Box(0, 255, (4, 8, 8), np.uint8)
CHOICES = spaces.Discrete(4)


def slots(dtype):
    """Observations with embeddings of four actions."""
    mask, embeddings = spaces.MultiBinary(4), spaces.Box(0, 5, (4, 2), dtype)
    return spaces.Dict({"x": VECTOR, "action_mask": mask, "avail_actions": embeddings})


def seen(space, rows):
    space.seed(1)
    samples = [space.sample() for _ in range(rows)]
    return jax.tree.map(lambda *parts: np.stack(parts), *samples)


def same_outputs_and_gradients(ours, twin, columns, *, call=run_model):
    """Copies the weights of a JAX model to its twin, and asserts equal outputs and gradients."""
    split = SplitModel(ours)
    start, extra = split.arrays_of(ours)
    copy_weights({**start, **extra}, twin)

    given = jax.tree.map(jnp.asarray, columns)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def compiled(params):
        out = tuple(call(split.merge(params, extra), given))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(out)), out

    gradients, expected = compiled(start)
    tensors = jax.tree.map(torch.as_tensor, columns)
    got = call(twin, tensors)
    for one, two in zip(jax.tree.leaves(tuple(got)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), two, **NEAR)
    sum(torch.sin(leaf).sum() for leaf in jax.tree.leaves(tuple(got))).backward()
    for name, gradient in torch_weights(gradients).items():
        np.testing.assert_allclose(twin.get_parameter(name).grad.numpy(), gradient, err_msg=name, **NEAR)


def made(space, actions, outputs, sizes):
    """A model of the catalog and its twin, both in evaluation mode."""
    ours = catalog.make_model(space, actions, outputs, sizes, nnx.Rngs(0))
    ours.eval()
    return ours, networks.make_model(space, actions, outputs, sizes).eval()


KINDS = (None, "layer", "batch", "batch_renorm")
LAYERS = {
    **{f"{kind} after": (VECTOR, {"normalization": kind}) for kind in KINDS[1:]},
    **{f"{kind} before": (NESTED, {"normalization": kind, "normalize_before_activation": True}) for kind in KINDS[1:]},
    **{f"{kind} residual": (NESTED, {"normalization": kind, "residual_blocks": True}) for kind in KINDS},
}


class TestModels:
    @pytest.mark.short(every=3)
    @pytest.mark.parametrize("space", [VECTOR, NESTED, IMAGE, FRAMES], ids=["vector", "nested", "image", "frames"])
    @pytest.mark.parametrize(
        "changes", [{}, {"vf_share_layers": True, "free_log_std": True, "fcnet_activation": "gelu"}], ids=["two", "one"]
    )
    def test_actor_critic(self, space, changes):
        models = made(space, VECTOR, 6, ModelConfig(fcnet_hiddens=(8, 5), **changes))
        same_outputs_and_gradients(*models, {"obs": seen(space, B)})

    def test_log_standard_deviations_begin_at_their_initial_value(self):
        sizes = ModelConfig(fcnet_hiddens=(8,), free_log_std=True, log_std_init=-2.0)
        model = networks.make_model(VECTOR, VECTOR, 6, sizes)
        np.testing.assert_array_equal(model.get_parameter("log_std").detach().numpy(), np.full(3, -2, np.float32))

    @pytest.mark.short(every=3)
    @pytest.mark.parametrize("name", LAYERS)
    def test_normalization_and_residual_blocks(self, name):
        space, changes = LAYERS[name]
        models = made(space, VECTOR, 6, ModelConfig(fcnet_hiddens=(8, 8), **changes))
        same_outputs_and_gradients(*models, {"obs": seen(space, B)})

    @pytest.mark.parametrize("kind", ["batch", "batch_renorm"])
    def test_running_statistics_of_batches(self, kind):
        ours, twin = made(VECTOR, VECTOR, 6, ModelConfig(fcnet_hiddens=(4,), normalization=kind))
        split = SplitModel(ours)
        copy_weights({**split.arrays_of(ours)[0], **split.arrays_of(ours)[1]}, twin)
        ours.train()
        ours(normal(B, 3))
        twin.train()(torch.as_tensor(normal(B, 3)))
        stored = twin.state_dict()
        for name, statistic in torch_weights(split.extra_of(ours)).items():
            np.testing.assert_allclose(stored[name], statistic, err_msg=name, **NEAR)

    def test_normalized_observations(self):
        ours, twin = made(NESTED, VECTOR, 6, ModelConfig(fcnet_hiddens=(8,), normalize_observations=True))
        ours.train()
        ours(seen(NESTED, B))
        ours.eval()
        same_outputs_and_gradients(ours, twin, {"obs": seen(NESTED, B)})

    @pytest.mark.short("True-use_gru")
    @pytest.mark.parametrize("kind", ["use_lstm", "use_gru"])
    @pytest.mark.parametrize("shared", [False, True])
    def test_memory(self, kind, shared):
        more = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "vf_share_layers": shared}
        sizes = ModelConfig(fcnet_hiddens=(5,), lstm_cell_size=6, **{kind: True}, **more)
        ours, twin = made(VECTOR, CHOICES, 4, sizes)
        assert [part.shape for part in twin.initial_state()] == [part.shape for part in ours.initial_state()]
        width = ours.initial_state()[0].shape[0]
        for steps in (1, 3):  # as in acting, and as in learning
            columns = {
                "obs": normal(2 * steps, 3),
                "state_in": (normal(2, width, scale=0.5),),
                "prev_actions": np.arange(2 * steps, dtype=np.int32) % 4,
                "prev_rewards": normal(2 * steps),
            }
            same_outputs_and_gradients(ours, twin, columns)
            twin.zero_grad()

    @pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
    def test_values_of_actions(self, shape):
        sizes = ModelConfig(fcnet_hiddens=(8,), fcnet_activation="relu")
        columns = {"obs": normal(B, 3), "actions": normal(B, *shape)}
        box = spaces.Box(-1, 1, shape, np.float32)
        models = ActionValue(VECTOR, box, sizes, rngs=nnx.Rngs(0)), networks.ActionValue(VECTOR, box, sizes)
        same_outputs_and_gradients(*models, columns, call=lambda model, rows: (model(rows["obs"], rows["actions"]),))

    def test_centralized_critic(self):
        agents = 3
        part = spaces.Dict({"obs": VECTOR, "actions": CHOICES})
        other = spaces.Dict({"presence": spaces.Discrete(3), "parts": spaces.Tuple([part])})
        space = spaces.Dict({"agent": spaces.Discrete(agents), "obs": VECTOR, "other": other})
        sizes = ModelConfig(fcnet_hiddens=(8,))
        of_others = (np.arange(2 * B) % 4).reshape(B, 2)
        columns = {
            "agent": np.arange(B) % agents,
            "obs": normal(B, 3),
            "other": {"presence": of_others % 3, "parts": ({"obs": normal(B, 2, 3, seed=1), "actions": of_others},)},
        }
        models = CentralCritic(space, sizes, rngs=nnx.Rngs(0)), networks.CentralCritic(space, sizes)
        same_outputs_and_gradients(*models, columns, call=lambda model, columns: (model(columns),))

    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("dtype", [None, np.float32, np.uint8], ids=["dense", "embeddings", "bytes"])
    def test_q_network(self, dueling, dtype):
        space = VECTOR if dtype is None else slots(dtype)
        sizes = ModelConfig(fcnet_hiddens=(8,))
        ours = QNetwork(space, 4, sizes, dueling=dueling, rngs=nnx.Rngs(0))
        twin = networks.QNetwork(space, 4, sizes, dueling=dueling)
        params, _ = SplitModel(ours).arrays_of(ours)
        names = {name.replace("layers.0.", "") if "trunk" not in name else name: a for name, a in params.items()}
        if dtype is not None:
            names = {name.replace("advantages.", "advantages.intent."): a for name, a in names.items()}
            names = {f"advantages.{name}" if name.startswith("key.") else name: a for name, a in names.items()}
        copy_weights(names, twin)
        obs = seen(space, B)
        out, expected = twin(jax.tree.map(torch.as_tensor, obs)), ours(jax.tree.map(jnp.asarray, obs))
        np.testing.assert_allclose(out.policy.detach(), expected.policy, **NEAR)
        np.testing.assert_allclose(out.value.detach(), expected.value, **NEAR)

    @pytest.mark.parametrize("dtype", [np.float32, np.uint8])
    def test_embeddings_of_actions(self, dtype):
        models = made(slots(dtype), CHOICES, 4, ModelConfig(fcnet_hiddens=(8,)))
        same_outputs_and_gradients(*models, {"obs": seen(slots(dtype), B)})


@pytest.mark.parametrize("activation", get_args(Activation))
def test_models_can_be_pickled(activation):
    model = networks.make_model(VECTOR, CHOICES, 4, ModelConfig(fcnet_hiddens=(5,), fcnet_activation=activation))
    obs = torch.as_tensor(normal(B, 3))
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert torch.equal(copy(obs).policy, model(obs).policy)


def test_initial_weights_are_orthogonal():
    layer = networks.Trunk(spaces.Box(-1, 1, (6,), np.float32), ModelConfig(fcnet_hiddens=(6,))).mlp.layers[0]
    product = layer.weight.detach() @ layer.weight.detach().T
    np.testing.assert_allclose(product, 2 * np.eye(6), atol=1e-5)  # gain √2
    assert not layer.bias.detach().any()
