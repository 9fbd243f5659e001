"""User-defined optimizers and losses in PyTorch: refused ones, clipping, and restored state."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax.errors import BatchError, CheckpointError, NonFiniteError, PolicyError
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.losses import chosen
from tests.env.refused import refused
from tests.torch.made import experience, make, own, same
from tests.torch.test_own_models import Stateful, TwoLinears


class TestOptimizers:
    @pytest.mark.parametrize(
        ("make_optimizer", "message"),
        [
            # They would not be clipped, saved or restored, and their gradients not cleared.
            (
                lambda params: torch.optim.Adam([*params, *nn.Linear(2, 2).parameters()], lr=0.0),
                r"not the model's(.|\n)*got: +2 other parameters(.|\n)*ActorCritic",
            ),
            (lambda params: None, r"did not return an optimizer(.|\n)*make_optimizer(.|\n)*NoneType"),
            (torch.optim.LBFGS, r"calls the loss itself(.|\n)*LBFGS"),
            (torch.optim.SparseAdam, r"accepts only sparse gradients(.|\n)*SparseAdam"),
            (
                lambda p: torch.optim.SGD([{"params": p[:2], "lr": 1e-3}, {"params": p[2:], "lr": 1e-2}]),
                r"overwritten(.|\n)*lr=0.001 and 0.01(.|\n)*learning_rates",
            ),
        ],
        ids=["other parameters", "none", "calls the loss", "sparse", "learning rates of groups"],
    )
    def test_others_are_refused(self, make_optimizer, message):
        with pytest.raises(PolicyError, match=message):
            own(make_optimizer=lambda self, params, model: make_optimizer(params))

    def test_untrained_parameters_of_the_model_are_accepted(self):
        stateful = {"model": {"custom_model": Stateful}}
        policy = own(changes=stateful, make_optimizer=lambda _, params, model: torch.optim.SGD(model.parameters(), 0.0))
        policy.learn_on_batch(experience(policy))
        assert policy.get_weights()["fixed"] == 1

    def test_a_learning_rate_that_steps_overwrite_is_refused(self):
        message = r"would be overwritten(.|\n)*algorithm Own, make_optimizer(.|\n)*SGD with lr=0.5(.|\n)*now 0.25"
        with pytest.raises(PolicyError, match=message):
            own(changes={"lr": 0.25}, make_optimizer=lambda _, params, model: torch.optim.SGD(params, lr=0.5))
        for rate in (0.0, 0.3, 1e-3, torch.tensor(0.3), torch.tensor(1e-3)):  # 1e-3 is the default of SGD
            policy = own(
                changes={"lr": 0.3}, make_optimizer=lambda _, params, model, r=rate: torch.optim.SGD(params, r)
            )
            assert policy.learn_on_batch(experience(policy))["cur_lr"] == 0.3

    @pytest.mark.parametrize("names", [({}, {}), ({"name": "actor"}, {"name": "critic"})], ids=["unnamed", "named"])
    def test_the_global_norm_is_clipped_over_user_defined_groups(self, names):
        def in_two(self, params, model):
            groups = {"params": params[:2], "weight_decay": 0.0, **names[0]}, {"params": params[2:], **names[1]}
            return torch.optim.SGD(groups, lr=0.0)

        config = {"grad_clip": 1e-3, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "lr": 1.0}
        policy = own(changes=config, make_optimizer=in_two)
        before = policy.get_weights()
        policy.learn_on_batch(experience(policy))
        moved = np.concatenate([(policy.get_weights()[name] - before[name]).ravel() for name in before])
        assert np.linalg.norm(moved) == pytest.approx(1e-3, rel=1e-3)

    def test_learning_rates_of_parts(self):
        def rates(self, lr):
            return dict.fromkeys(("policy_trunk", "value_trunk", "policy_head", "value_head"), 1e-3)

        policy = own(learning_rates=rates, make_optimizer=lambda self, params, model: torch.optim.SGD(params, lr=0.0))
        policy.learn_on_batch(experience(policy))
        with pytest.raises(PolicyError, match=r"have no learning rate(.|\n)*groups named \[None\]"):
            own(learning_rates=rates, make_optimizer=lambda _, params, model: torch.optim.SGD(model.parameters(), 0.0))

    def test_the_used_learning_rate_is_reported(self):
        policy = own(learning_rates=lambda self, lr: 1e-4)
        assert policy.learn_on_batch(experience(policy))["cur_lr"] == 1e-4

    def test_a_refused_state_changes_nothing(self):
        policy = make(seed=1)
        other = own(make_optimizer=lambda self, params, model: torch.optim.SGD(params, lr=0.0, momentum=0.9))
        policy.learn_on_batch(experience(policy))
        before = other.get_weights()  # `other` has no state yet to compare with
        refused(CheckpointError, other.set_state, policy.get_state(), says="different optimizer...adam:Adam...sgd:SGD")
        same(other.get_weights(), before)


def test_gradients_may_leave_out_parts_of_the_model_but_not_all():
    policy = make()
    gradients, _ = policy.compute_gradients(experience(policy))
    first, before = next(iter(gradients)), policy.get_weights()
    with pytest.raises(PolicyError, match="missing: .*" + first):
        policy.apply_gradients({})
    same(policy.get_weights(), before)
    policy.apply_gradients({name: array for name, array in gradients.items() if name != first})
    after = policy.get_weights()
    assert [name for name in before if np.array_equal(before[name], after[name])] == [first]


class TestLosses:
    def test_a_loss_that_writes_to_its_batch_changes_no_other_epoch(self):
        def loss(self, model, out, batch, mask, coefficients):
            seen.append(batch["advantages"].abs().sum().item())
            batch["advantages"].mul_(0.1)
            return out.value.mean(), {}

        seen = []
        policy = own(loss=loss, make_plan=lambda self: UpdatePlan(None, 3))
        policy.learn_on_batch(experience(policy, rows=64))
        assert len(seen) == 3
        np.testing.assert_allclose(seen, seen[0], rtol=1e-5)

    def test_a_loss_without_a_gradient(self):
        policy = own(loss=lambda self, model, out, *_: (out.value.mean().detach(), {}))
        refused(PolicyError, policy.learn_on_batch, experience(policy), says="has no gradient...detach")

    @pytest.mark.parametrize("value", [None, "high", {"a": 1}], ids=["none", "text", "dict"])
    def test_statistics_that_are_no_numbers_are_refused(self, value):
        policy = own(loss=lambda self, model, out, *_: (out.value.mean(), {"mine": value}))
        with pytest.raises(PolicyError, match=rf"statistic 'mine' of the loss(.|\n)*{type(value).__name__}"):
            policy.learn_on_batch(experience(policy))

    @pytest.mark.parametrize("rows", [3, 17])
    def test_columns_of_another_length(self, rows):
        def loss_columns(self, batch, rng):
            return {**TorchPPO.loss_columns(self, batch, rng), "alpha": np.ones(rows, np.float32)}

        policy = own(loss_columns=loss_columns)
        with pytest.raises(BatchError, match=rf"loss_columns, column 'alpha'(.|\n)*\({rows},\)(.|\n)*\(16, ...\)"):
            policy.learn_on_batch(experience(policy))

    def test_statistics_of_some_minibatches(self):
        def loss(self, model, out, batch, mask, coefficients):
            calls.append(len(calls))
            return out.value.mean(), {"always": 1.0, **({"sometimes": float(calls[-1])} if calls[-1] % 2 else {})}

        calls = []
        policy = own(changes={"num_sgd_iter": 1, "sgd_minibatch_size": 4}, loss=loss)
        assert policy.learn_on_batch(experience(policy))["sometimes"] == 2  # of the steps 1 and 3

    def test_an_action_out_of_range_is_nan_and_has_no_gradient_if_masked(self):
        values = torch.ones(3, 4, requires_grad=True)
        found = chosen(values, torch.tensor([3, -2, 4]))
        np.testing.assert_array_equal(found.detach(), [1, np.nan, np.nan])
        torch.where(torch.tensor([True, False, False]), found, 0.0).sum().backward()
        assert values.grad is not None
        assert values.grad.sum() == values.grad[0, 3] == 1

        def loss(self, model, out, batch, mask, coefficients):
            return chosen(out.policy, batch["actions"]).mean(), {}  # the actions of the space begin at 2

        policy = own(loss=loss)
        refused(NonFiniteError, policy.learn_on_batch, experience(policy), says="the loss")


class TestPadding:
    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore")  # PyTorch's own, while it compiles
    def test_batch_statistics_of_a_compiled_loss_exclude_padding(self, monkeypatch):
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        means = []
        for compiled in (False, True):
            config = {"num_sgd_iter": 1, "sgd_minibatch_size": 64, "torch_compile": compiled}
            config["model"] = {"custom_model": Stateful}
            policy = own(changes=config, loss=lambda self, model, out, *_: (out.value.mean(), {}))
            policy.learn_on_batch(experience(policy, 9))
            means.append(policy.get_weights()["norm.running_mean"])
        np.testing.assert_allclose(*means, rtol=1e-5)


def test_a_model_with_an_attribute_critic_returns_values():
    class Two(TwoLinears):
        def __init__(self, observation_space, num_outputs):
            super().__init__(observation_space, num_outputs, "no value")
            self.critic = nn.Linear(3, 1)

    class WithMethod(Two):
        def __init__(self, observation_space, num_outputs):
            super().__init__(observation_space, num_outputs)
            self.critic = None

        def critic(self, critic_obs):
            return self.value(critic_obs)[:, 0]

    for model in (Two, WithMethod):  # nothing adds the input of the method
        with pytest.raises(PolicyError, match=r"value of the wrong shape(.|\n)*return state values too"):
            make(model={"custom_model": model})
