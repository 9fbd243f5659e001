"""Parts of a model in PyTorch that are shared, frozen, or replaced, also while it acts."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax import Outputs, PolicyError, TorchPolicy
from rollax.config.multiagent import SharedParts
from rollax.errors import ShapeError
from rollax.policy.shared_variables import SharedVariables
from rollax.policy.targets import periodic_copy, polyak_average
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.functional import torch_algorithm
from tests.env.refused import refused
from tests.torch.made import CHOICES, PPO_CONFIG, SEEN, experience, make, same
from tests.torch.test_own_models import TwoLinears


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


def with_targets(*parts: str) -> Any:
    plan = UpdatePlan(updated_targets=polyak_average(0.5, parts))
    made = type("Targets", (TorchPPO,), {"make_plan": lambda self: plan})
    return made.make_policy(SEEN, CHOICES, {**PPO_CONFIG, "model": {"custom_model": Shared}})


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


def test_a_frozen_replacement_of_a_layer_is_named():
    policy = make(model={"custom_model": TwoLinears})
    batch = experience(policy)
    policy.model.value = nn.Linear(3, 1).requires_grad_(False)
    for call in (lambda: policy.learn_on_batch(batch), policy.get_weights, policy.get_state):
        refused(PolicyError, call, says="neither trained nor stored...'value.weight', 'value.bias'")


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
    class Decays(TorchPPO):
        def make_optimizer(self, params, model):
            return torch.optim.AdamW(params, lr=0.0, weight_decay=0.5)

    policy = Decays.make_policy(SEEN, CHOICES, {**PPO_CONFIG, "model": {"custom_model": TwoLinears}})
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


def test_weights_of_a_shared_part_that_contradict_each_other_are_refused():
    policies = {name: make(seed=seed, model={"custom_model": TwoLinears}) for seed, name in enumerate("ab")}
    shared = SharedVariables({"s": SharedParts(parts=("policy",))}, policies)
    weights = {name: policy.get_weights() for name, policy in policies.items()}
    weights["a"]["policy.bias"][0] = np.nan
    weights["b"]["policy.bias"] = weights["a"]["policy.bias"].copy()
    shared.refuse_conflicts(weights)  # a NaN is no difference
    weights["b"]["policy.bias"][0] = 0.0
    with pytest.raises(PolicyError, match=r"variable 'policy.bias' of policies 'a' and 'b'(.|\n)*1 different"):
        shared.refuse_conflicts(weights)


class Counts(TwoLinears):
    """Replaces a buffer in each call."""

    def __init__(self, observation_space, num_outputs):
        super().__init__(observation_space, num_outputs)
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, obs):
        self.rows = self.rows + len(obs)
        return super().forward(obs)


def test_buffers_that_acting_replaces_are_weights():
    policy = make(model={"custom_model": Counts})
    before = policy.get_weights()
    policy.compute_actions(np.zeros((5, 3), np.float32))
    assert policy.get_weights()["rows"] == before["rows"] + 5
    policy.compute_actions(np.zeros((5, 3), np.float32))
    policy.set_weights(before)
    assert policy.model.rows == before["rows"]


class KeepsPolicy(TorchPolicy):
    """Has a network and its optimizer in addition to the model."""

    def __init__(self, *args):
        super().__init__(*args)
        self.further = nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.further.parameters())
        self.further(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()


class Keeps(TorchPPO):
    policy_class = KeepsPolicy


def test_the_optimizer_of_a_later_frozen_network_is_stored():
    policy = Keeps.make_policy(SEEN, CHOICES, PPO_CONFIG)
    policy.further.requires_grad_(False)
    policy.get_state()


def test_further_state_of_a_network_in_an_attribute_is_named():
    class Norm(nn.Module):
        def get_extra_state(self):
            return {"count": 1}

    policy = make()
    policy.norm = Norm()
    refused(PolicyError, policy.get_state, says="would be lost...attribute 'norm'")


def test_a_model_that_cannot_be_copied_is_refused():
    class Computed(TwoLinears):
        def __init__(self, observation_space, num_outputs):
            super().__init__(observation_space, num_outputs)
            self.computed = self.policy.weight * 2

    class Own(TorchPPO):
        def make_plan(self):
            return UpdatePlan(updated_targets=periodic_copy(2))

    with pytest.raises(PolicyError, match=r"cannot be copied(.|\n)*parametrizations"):
        Own.make_policy(SEEN, CHOICES, {**PPO_CONFIG, "model": {"custom_model": Computed}})


def test_groups_of_one_part_share_a_norm_bound():
    class Split(TorchPPO):
        def learning_rates(self, lr):
            return dict.fromkeys(["policy", "value"], 1.0)

        def make_optimizer(self, params, model):
            halves = [{**group, "params": [one]} for group in params for one in group["params"]]
            return torch.optim.SGD(halves, lr=0.0)

    config = {**PPO_CONFIG, "grad_clip": 1e-3, "num_sgd_iter": 1, "sgd_minibatch_size": 16}
    policy = Split.make_policy(SEEN, CHOICES, {**config, "model": {"custom_model": TwoLinears}})
    before = policy.get_weights()
    policy.learn_on_batch(experience(policy))
    after = policy.get_weights()
    for part in ("policy", "value"):
        moved = np.concatenate([(after[n] - before[n]).ravel() for n in before if n.startswith(part)])
        assert np.linalg.norm(moved) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("by_row", [False, True])
def test_statistics_of_some_microbatches(by_row):
    calls = []

    class Own(TorchPPO):
        def make_plan(self):
            return UpdatePlan(16, 1, microbatch_size=4)

        def loss(self, model, out, batch, mask, coefficients):
            loss, statistics = super().loss(model, out, batch, mask, coefficients)
            calls.append(1)
            sometimes = {} if len(calls) > 1 else {"sometimes": mask * 8 if by_row else 8.0}
            return loss, {**statistics, **sometimes}

    policy = Own.make_policy(SEEN, CHOICES, PPO_CONFIG)
    if by_row:
        refused(ShapeError, policy.learn_on_batch, experience(policy), says="Some microbatches lack...1 of 4")
        return
    assert policy.learn_on_batch(experience(policy))["sometimes"] == 8


def test_outputs_in_half_precision_with_a_mask_of_actions():
    out = Outputs(torch.zeros(1, 4, dtype=torch.float16), torch.ones(1, dtype=torch.float16))
    found = make().algorithm.forward(lambda obs: out, {"obs": torch.zeros(1, 3)})
    assert (found.policy.dtype, found.value.dtype) == (torch.float32, torch.float32)


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
