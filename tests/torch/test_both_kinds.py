"""What a class of a user's sees is the same for `JaxPolicy` and `TorchPolicy`."""

from typing import Any

import numpy as np
import optax
import pytest
import torch
from flax import nnx
from gymnasium import spaces

from rollax import Algorithm, MultiAgentBatch, Outputs, SampleBatch, TorchAlgorithm
from rollax.errors import BatchError, EnvError, NonFiniteError, PolicyError, ShapeError
from rollax.policy.checks import ColumnShapes
from rollax.policy.exploration import Exploration
from tests.env.refused import raised, refused
from tests.torch.made import CHOICES, SEEN, seen
from tests.torch.test_own_models import TwoLinears

MASKED = spaces.Dict({"x": SEEN, "action_mask": spaces.MultiBinary(4)})
KINDS = {"JAX": Algorithm, "PyTorch": TorchAlgorithm}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def made(kind, observation_space=SEEN, *, loss=lambda out: (out.policy.mean(), {}), config=None, **methods):
    """A policy of this kind with the loss of its outputs, and these methods."""
    methods["loss"] = lambda self, model, out, batch, mask, coefficients: loss(out)
    methods.setdefault("samples", property(lambda self: None))
    policy_class: Any = type(f"Own{kind}", (KINDS[kind],), methods)
    settings = {"model": {"fcnet_hiddens": (8,)}, "seed": 0, **(config or {})}
    return policy_class.make_policy(observation_space, CHOICES, settings)


def batch(rows=5):
    return SampleBatch({"obs": seen(rows), "actions": np.full(rows, 3, np.int32)})


class TestErrorsOfTransitions:
    @both_kinds
    def test_values_by_row(self, kind):
        policy = made(kind, loss=lambda out: (out.policy.mean(), {"td_error": out.value}))
        np.testing.assert_allclose(policy.td_errors(batch()), policy.compute_values(seen(5)), rtol=1e-6)

    @both_kinds
    def test_a_loss_without_them_is_named(self, kind):
        raised(PolicyError, made(kind).td_errors, batch(), says=f"returns no error for each row...Own{kind}, td_errors")

    @both_kinds
    def test_a_number_is_refused(self, kind):
        policy = made(kind, loss=lambda out: (out.policy.mean(), {"td_error": out.value.mean()}))
        refused(ShapeError, policy.td_errors, batch(), says="'td_error'...got:      ()")


@both_kinds
@pytest.mark.parametrize(
    ("result", "got"),
    [
        (lambda out: out.value.mean(), "array []"),
        (lambda out: (out.value, {}), "array [5], dict"),
        (lambda out: (out.value.mean(), {}, 1), "array [], dict, int"),
        (lambda out: (0.0, {}), "float, dict"),
        (lambda out: None, "NoneType"),
    ],
)
def test_a_loss_returns_a_number_and_a_dict(kind, result, got):
    got = got.replace("array", {"JAX": "Array", "PyTorch": "Tensor"}[kind])
    says = f"not return a number and a dict...algorithm Own{kind}, loss\n...got:      {got}\n"
    refused(PolicyError, made(kind, loss=result).learn_on_batch, batch(), says=says)


def test_statistics_of_a_loss_are_numbers_and_columns():
    def loss(out):
        return out.value.mean(), {"two": 2, "half": 0.5, "by_row": out.value}

    assert made("JAX", loss=loss).learn_on_batch(batch())["two"] == 2
    policy = made("JAX", loss=lambda out: (out.value.mean(), {"odd": np.ones(3)}))
    refused(ShapeError, policy.learn_on_batch, batch(), says="statistic 'odd' of the loss\n...(3,)...(5,)")


class LastChoice(Exploration):
    """The largest output of the last three of four, that of action 5 if all are valid."""

    num_inputs = 4
    fetched = {"q_value": 1}

    def mode(self, outputs):
        return (np.arange(4) * 1e3 + outputs).argmax(axis=-1).astype(np.int32) + 2

    def fetches(self, outputs, actions):
        return {"q_value": outputs[:, :1]}


@both_kinds
@pytest.mark.parametrize("explore", [False, True])
def test_masks_apply_to_any_exploration(kind, explore):
    policy = made(kind, MASKED, make_exploration=lambda self: LastChoice())
    masks = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 0, 0]], np.int8)
    actions, _, _ = policy.compute_actions({"x": seen(3), "action_mask": masks}, explore=explore)
    assert actions.tolist() == [5, 4, 3]


@both_kinds
def test_an_own_forward_pass_acts_and_learns(kind):
    def forward(self, model, columns):
        out = KINDS[kind].forward(self, model, columns)
        return out._replace(policy=-out.policy, value=0 * out.value + 7)

    policy = made(kind, forward=forward, loss=lambda out: (out.policy.mean(), {"value": out.value.mean()}))
    outputs = made(kind).compute_actions(seen(20))[2]["action_dist_inputs"]
    for explore in (False, True):
        _, _, fetches = policy.compute_actions(seen(20), explore=explore)
        np.testing.assert_array_equal(-outputs, fetches["action_dist_inputs"])
    assert policy.compute_values(seen(2)).tolist() == [7, 7]
    assert policy.learn_on_batch(batch())["value"] == 7


@both_kinds
@pytest.mark.parametrize("parts", [False, True])
def test_gradients_of_an_own_optimizer_are_clipped(kind, parts):
    """Plain gradient descent with a rate of 1 moves the weights by the bound, or each part of them."""

    def in_torch(self, params, model):
        return torch.optim.SGD(params, lr=0.0)

    methods = {"JAX": lambda self: optax.identity(), "PyTorch": in_torch}
    heads = ("policy_head", "value_head")
    rates = dict.fromkeys(("policy_trunk", "value_trunk", *heads), 1.0) if parts else 1.0
    policy = made(
        kind,
        loss=lambda out: (100 * (out.policy[:, 0] + out.value).mean(), {}),
        config={"grad_clip": 0.5},
        make_optimizer=methods[kind],
        learning_rates=lambda self, lr: rates,
    )
    before = policy.get_weights()
    policy.learn_on_batch(batch())
    steps = {name: ((value - before[name]) ** 2).sum() for name, value in policy.get_weights().items()}
    norms = [np.sqrt(sum(s for n, s in steps.items() if n.startswith(part))) for part in (heads if parts else [""])]
    np.testing.assert_allclose(norms, 0.5, rtol=1e-5)


@both_kinds
@pytest.mark.parametrize("grad_clip", [None, 0.5])
def test_gradients_whose_norm_overflows_are_refused(kind, grad_clip):
    """Adam would divide by an infinite second moment from then on, and a bound would make the gradient 0."""
    policy = made(kind, config={"grad_clip": grad_clip})
    gradients, _ = policy.compute_gradients(batch())
    before = policy.get_weights()
    with pytest.raises(NonFiniteError, match="gradient step 0: the norm of the gradient"):
        policy.apply_gradients({name: np.full_like(value, 1e30) for name, value in gradients.items()})
    policy.apply_gradients(gradients)
    assert any(not np.array_equal(value, before[name]) for name, value in policy.get_weights().items())


@both_kinds
def test_a_norm_of_the_gradient_that_overflows_is_named_in_learning(kind):
    policy = made(kind, loss=lambda out: (1e30 * out.policy.mean(), {}))
    refused(NonFiniteError, policy.learn_on_batch, batch(), says="gradient step 0: the norm of the gradient")


class OnlyActorInJax(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.layer(obs))


@both_kinds
def test_values_are_zeros_if_the_model_has_none(kind):
    models = {"JAX": lambda self, rngs: OnlyActorInJax(rngs), "PyTorch": lambda self: TwoLinears(SEEN, 4, "no value")}
    _, _, fetches = made(kind, make_model=models[kind]).compute_actions(seen(2))
    assert fetches["vf_preds"].tolist() == [0, 0]
    refused(PolicyError, made(kind, make_model=models[kind]).compute_values, seen(2), says="returns no values")


@pytest.mark.short(every=3)
@both_kinds
@pytest.mark.parametrize(
    ("space", "obs", "found"),
    [
        (SEEN, np.zeros((2, 4), np.float32), "got:      float32[2, 4]\n  expected: an array of numbers [N, 3]"),
        (SEEN, np.zeros(3, np.float32), "float32[3]"),
        (SEEN, [[0.0, 0.0, 0.0]], "got:      [[0.0"),
        (SEEN, np.full((2, 3), "0"), "<U1[2, 3]"),
        (SEEN, {"x": np.zeros((2, 3))}, "a dict with the keys ['x'"),
        (spaces.Discrete(3), np.zeros((2, 1), np.int64), "[2, 1]\n  expected: an array of numbers [N]"),
        # Of the same number of pixels, so that it could be encoded.
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), np.zeros((2, 3, 4, 4), np.uint8), "[2, 3, 4, 4]"),
        (MASKED, {"x": seen(3), "action_mask": np.ones((2, 4))}, "key 'x'\n...[3, 3]...numbers [2, 3]"),
        (MASKED, {"action_mask": np.ones((2, 4))}, "key 'x'\n  got:      no such part in dict"),
    ],
)
def test_observations_of_another_space_are_refused(kind, space, obs, found):
    policy = made(kind, space)
    for act in (policy.compute_actions, policy.compute_values):
        refused(EnvError, act, obs, says=f"observations for policy 'default_policy'...{found}")


def test_further_keys_of_observations_do_not_count():
    obs = {"aside": np.zeros(5), "x": seen(3), "action_mask": np.ones((3, 4), np.int8)}
    shapes = ColumnShapes(MASKED)
    assert (shapes.misfit(obs), shapes.rows_of(obs)) == (None, 3)
    assert len(made("PyTorch", MASKED).compute_actions(obs)[0]) == 3


@both_kinds
@pytest.mark.parametrize("given", [{"obs": seen(5), "actions": np.full(5, 3)}, MultiAgentBatch({}, 0), None])
def test_only_a_sample_batch_is_learned_from(kind, given):
    policy = made(kind)
    for method in (policy.learn_on_batch, policy.compute_gradients, policy.td_errors):
        raised(BatchError, method, given, says=f"not a SampleBatch.\n  where: ...Own{kind}...SampleBatch({{")
