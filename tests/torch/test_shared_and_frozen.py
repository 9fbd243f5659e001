"""Parts of a model in PyTorch that are shared, frozen, or replaced, also while it acts."""

import numpy as np
import pytest
import torch
from torch import nn

from rollax import Outputs, PolicyError, TorchPolicy
from rollax.config.multiagent import SharedParts
from rollax.errors import ShapeError
from rollax.policy.shared_variables import SharedVariables
from rollax.policy.targets import periodic_copy, polyak_average
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.functional import torch_algorithm
from tests.env.refused import refused
from tests.torch.made import experience, make, own, same
from tests.torch.test_own_models import Counter, Replacing, TwoLinears


class Part(nn.Module):
    def __init__(self, encoder, width):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(4, width)

    def forward(self, obs):
        return self.head(torch.tanh(self.encoder(obs)))


class Shared(nn.Module):
    """Actor and critic with one encoder, which is named as part of the actor."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        encoder = nn.Linear(3, 4)
        self.actor, self.critic_net = Part(encoder, num_outputs), Part(encoder, 1)

    def forward(self, obs):
        return Outputs(self.actor(obs), self.critic_net(obs)[:, 0])


def with_targets(*parts):
    plan = UpdatePlan(updated_targets=polyak_average(0.5, parts))
    return own(changes={"model": {"custom_model": Shared}}, make_plan=lambda self: plan)


def test_targets_of_an_encoder_that_two_parts_share():
    with pytest.raises(PolicyError, match=r"never change(.|\n)*actor.encoder.weight, which is in \['critic_net'\] too"):
        with_targets("critic_net")
    policy = with_targets("actor", "critic_net")
    before = policy.targets["actor.encoder.weight"].clone()
    policy.learn_on_batch(experience(policy))
    assert not torch.equal(policy.targets["actor.encoder.weight"], before)


def test_a_frozen_critic_does_not_change_its_running_statistics():
    policy = make("TorchSAC", model={"fcnet_hiddens": (8,), "normalize_observations": True})
    policy.learn_on_batch(experience(policy))
    calls = {int(value) for name, value in policy.get_weights().items() if name.endswith("calls")}
    assert calls == {policy.learner.num_updates}


def test_another_model_is_refused():
    policy, other = make(), make(seed=1)
    before = policy.get_weights()
    with pytest.raises(PolicyError, match=r"cannot be replaced(.|\n)*TorchPPO, attribute 'model'(.|\n)*set_weights"):
        policy.model = other.model  # it would act, and the first one would learn
    same(policy.get_weights(), before)
    policy.model.load_state_dict(other.model.state_dict())
    same(policy.get_weights(), other.get_weights())
    policy.learn_on_batch(experience(policy))
    assert not np.array_equal(policy.get_weights()["policy_head.weight"], other.get_weights()["policy_head.weight"])


def test_gradients_do_not_change_frozen_parts():
    def decays(self, params, model):
        return torch.optim.AdamW(params, lr=0.0, weight_decay=0.5)

    policy = own(changes={"model": {"custom_model": TwoLinears}}, make_optimizer=decays)
    batch = experience(policy)
    policy.model.value.requires_grad_(False)
    before = policy.get_weights()
    gradients, _ = policy.compute_gradients(batch)
    assert sorted(gradients) == ["policy.bias", "policy.weight"]
    policy.apply_gradients(gradients)
    after = policy.get_weights()
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {"policy.bias", "policy.weight"}


class Frozen(TwoLinears):
    def __init__(self, observation_space, num_outputs, frozen):
        super().__init__(observation_space, num_outputs)
        self.policy.requires_grad_(not frozen)


def test_a_part_that_only_one_policy_trains_is_shared():
    models = ({"custom_model": Frozen, "custom_model_config": {"frozen": frozen}} for frozen in (False, True))
    learns, uses = (make(seed=seed, model=model) for seed, model in enumerate(models))
    shared = SharedVariables({"s": SharedParts(parts=("policy",))}, {"learns": learns, "uses": uses})
    learns.learn_on_batch(experience(learns))
    shared.synchronize()
    for name in ("policy.weight", "policy.bias"):
        np.testing.assert_array_equal(uses.get_weights()[name], learns.get_weights()[name])


def test_buffers_that_acting_replaces_are_weights():
    def count(rows, obs):
        return rows + len(obs)

    policy = make(model={"custom_model": Replacing, "custom_model_config": {"first": torch.zeros(()), "newer": count}})
    policy.model.always = True
    before = policy.get_weights()
    policy.compute_actions(np.zeros((5, 3), np.float32))
    assert policy.get_weights()["buffer"] == before["buffer"] + 5
    policy.compute_actions(np.zeros((5, 3), np.float32))
    policy.set_weights(before)
    assert policy.model.buffer == before["buffer"]


class KeepsPolicy(TorchPolicy):
    """Has a network and its optimizer in addition to the model."""

    def __init__(self, *args):
        super().__init__(*args)
        self.further = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.further.parameters())
        self.further(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()


def test_the_optimizer_of_a_later_frozen_network_is_stored():
    policy = own(policy_class=KeepsPolicy)
    policy.further.requires_grad_(False)
    policy.get_state()


def test_further_state_of_a_network_in_an_attribute_is_named():
    policy = make()
    policy.counter = Counter()
    refused(PolicyError, policy.get_state, says="would be lost...attribute 'counter'")


def test_a_model_that_cannot_be_copied_is_refused():
    class Computed(TwoLinears):
        def __init__(self, observation_space, num_outputs):
            super().__init__(observation_space, num_outputs)
            self.computed = self.policy.weight * 2

    plan = UpdatePlan(updated_targets=periodic_copy(2))
    with pytest.raises(PolicyError, match=r"cannot be copied(.|\n)*parametrizations"):
        own(changes={"model": {"custom_model": Computed}}, make_plan=lambda self: plan)


def test_groups_of_one_part_share_a_norm_bound():
    def split(self, params, model):
        halves = [{**group, "params": [one]} for group in params for one in group["params"]]
        return torch.optim.SGD(halves, lr=0.0)

    config = {"grad_clip": 1e-3, "num_sgd_iter": 1, "sgd_minibatch_size": 16, "model": {"custom_model": TwoLinears}}
    policy = own(changes=config, make_optimizer=split, learning_rates=lambda self, lr: {"policy": 1.0, "value": 1.0})
    before = policy.get_weights()
    policy.learn_on_batch(experience(policy))
    after = policy.get_weights()
    for part in ("policy", "value"):
        moved = np.concatenate([(after[n] - before[n]).ravel() for n in before if n.startswith(part)])
        assert np.linalg.norm(moved) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("by_row", [False, True])
def test_statistics_of_some_microbatches(by_row):
    calls = []

    def loss(self, model, out, batch, mask, coefficients):
        calls.append(1)
        return out.value.mean(), {} if len(calls) > 1 else {"sometimes": mask * 8 if by_row else 8.0}

    policy = own(make_plan=lambda self: UpdatePlan(16, 1, microbatch_size=4), loss=loss)
    if by_row:
        refused(ShapeError, policy.learn_on_batch, experience(policy), says="Some microbatches lack...1 of 4")
        return
    assert policy.learn_on_batch(experience(policy))["sometimes"] == 8


def test_each_outputs_has_its_own_dict():
    Outputs(policy=1).aux["a"] = 1  # type: ignore[index]
    assert Outputs(policy=1).aux == {}
    assert Outputs(1, 2, (3,), {"b": 4})._replace(value=5) == (1, 5, (3,), {"b": 4})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: UpdatePlan(epochs=0),
        lambda: UpdatePlan(minibatch_size=2.5),  # type: ignore[arg-type]
        lambda: UpdatePlan(microbatch_size=-3),
        lambda: periodic_copy(0),
        lambda: polyak_average(0.1, ("a",), interval=0),
        lambda: polyak_average(5, ("a",)),
    ],
)
def test_invalid_numbers_of_a_plan_are_refused(wrong):
    with pytest.raises(PolicyError, match=r"not an integer of at least 1|out of range"):
        wrong()


@pytest.mark.parametrize("argument", ["reads", "statistics"])
def test_names_given_as_text_are_refused(argument):
    with pytest.raises(PolicyError, match=rf"argument {argument}(.|\n)*\['obs'\]"):
        torch_algorithm(lambda *_: None, name="Anything", **{argument: "obs"})


def test_values_are_copies():
    class Constant(TwoLinears):
        def forward(self, obs):
            return super().forward(obs)._replace(value=self.value.bias.expand(len(obs)))

    policy = make(model={"custom_model": Constant})
    before = policy.get_weights()
    policy.compute_values(np.zeros((2, 3), np.float32))[:] = 7
    same(policy.get_weights(), before)
