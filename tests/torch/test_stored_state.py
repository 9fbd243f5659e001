"""The state of a `TorchPolicy` besides its model, other optimizers, and shared variables."""

from collections import deque
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax import TorchPolicy
from rollax.config.multiagent import SharedParts
from rollax.errors import CheckpointError, ConfigError
from rollax.policy.shared_variables import SharedVariables
from tests.env.refused import refused
from tests.torch.made import continues_exactly, experience, make, own, same
from tests.torch.test_own_models import TwoLinears


class CuriousPolicy(TorchPolicy):
    """Has a network, an optimizer and a tensor in addition to its model."""

    def __init__(self, *args):
        super().__init__(*args)
        self.forward_model = nn.Linear(3, 3)
        self.own_optimizer = torch.optim.Adam(self.forward_model.parameters(), lr=0.1)
        self.count = {"steps": torch.zeros(2)}

    def learn_on_batch(self, batch):
        self.own_optimizer.zero_grad()
        self.forward_model(torch.as_tensor(batch["obs"])).square().sum().backward()
        self.own_optimizer.step()
        self.count["steps"] += 1
        return super().learn_on_batch(batch)


def test_state_in_attributes_is_stored():
    policy, other = (own(changes={"seed": seed}, policy_class=CuriousPolicy) for seed in (3, 9))
    continues_exactly(policy, other)
    assert torch.equal(policy.forward_model.weight, other.forward_model.weight)
    assert other.count["steps"].tolist() == [2, 2]
    state = policy.get_state()
    stored = {**state["own"], "forward_model": {".weight": np.zeros(2)}}
    refused(CheckpointError, policy.set_state, {**state, "own": stored}, says="attribute forward_model")


class Keeper:
    """A user-defined object with a network."""

    def __init__(self, network=None):
        self.inside = {"network": network or nn.Linear(2, 2)}


class Memory(deque):
    """A network in an attribute of a container."""

    def __init__(self):
        super().__init__()
        self.network = nn.Linear(2, 2)


class Slotted:
    """A network in an object without a `__dict__`."""

    __slots__ = ("__network",)

    def __init__(self):
        self.__network = nn.Linear(2, 2)


OTHERS = {
    "network": lambda _: Keeper(),
    "generator": lambda _: [torch.Generator()],
    "scheduler": lambda p: torch.optim.lr_scheduler.StepLR(p.learner.optimizer, 1),
    "slots": lambda _: Slotted(),
    "deque": lambda _: deque([torch.zeros(2)]),
    "set": lambda _: {Keeper()},
    "partial": lambda _: partial(torch.add, torch.zeros(2)),
    "method": lambda _: partial(Keeper().__init__),
    "subclass": lambda _: Memory(),
    "around the model": lambda p: Keeper(nn.Sequential(p.model)),
}


@pytest.mark.parametrize("make_state", OTHERS.values(), ids=OTHERS)
def test_state_inside_of_other_objects_is_refused(make_state):
    policy = make()
    policy.mine = make_state(policy)
    refused(CheckpointError, policy.get_state, says="would be lost...attribute 'mine'")


def test_references_to_stored_objects_are_no_state():
    policy = make()
    policy.network = nn.Linear(2, 2)
    policy.mine = [Keeper(policy.model), deque([policy.network, policy.generator])]
    policy.call = partial(torch.add, policy.network.weight)
    policy.methods = [policy.network.forward, policy.algorithm.loss]
    policy.figures = deque([policy.mine[0]] * 1000 + list(range(1000)))
    assert policy.get_state()["own"].keys() == {"network"}


def test_a_state_from_before_a_parameter_had_gradients_is_restored():
    def values_first(self, model, out, batch, mask, coefficients):
        loss, statistics = TorchPPO.loss(self, model, out, batch, mask, coefficients)
        return loss if coefficients["num_updates"] >= 4 else out.value.square().mean(), statistics

    policy = own(loss=values_first)
    batch = experience(policy)
    policy.learn_on_batch(batch)  # 4 gradient steps
    state, found = policy.get_state(), []
    assert not any(name.startswith("policy_head") for name in state["optimizer"])
    for _ in range(2):
        policy.set_state(state)
        policy.learn_on_batch(batch)
        found.append(policy.get_weights())
    same(*found)


class Scaled(TwoLinears):
    """Has a float64 parameter []."""

    def __init__(self, observation_space, num_outputs):
        super().__init__(observation_space, num_outputs)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, obs):
        out = super().forward(obs)
        return out._replace(policy=out.policy * self.scale)


class Counting(torch.optim.SGD):
    """Has Python numbers in its state, like SparseAdam."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["rate"] = state.get("rate", 1.0) / 3
                assert type(state["count"]) is int
                assert type(state["rate"]) is float
        return super().step(closure)


OPTIMIZERS = {
    "Adafactor": (torch.optim.Adafactor, TwoLinears),
    "NAdam": (torch.optim.NAdam, TwoLinears),
    "SGD": (partial(torch.optim.SGD, momentum=0.9), TwoLinears),
    "Adam, float64": (torch.optim.Adam, Scaled),
    "numbers of Python": (Counting, Scaled),
}


@pytest.mark.parametrize(("optimizer", "model"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_state_of_an_optimizer_is_restored_with_its_types(optimizer, model):
    made = {"make_optimizer": lambda self, params, model: optimizer(params, lr=0.0)}
    continues_exactly(*(own(changes={"seed": seed, "model": {"custom_model": model}}, **made) for seed in (1, 2)))


def test_shared_parts_are_the_same_tensors():
    policies = {name: make(seed=seed) for name, seed in (("a", 1), ("b", 2))}
    for name, policy in policies.items():
        policy.name = name
    SharedVariables({"trunk": SharedParts(parts=("policy_trunk",))}, policies)
    a, b = (policies[name].get_weights() for name in "ab")
    trunk = [name for name in a if name.startswith("policy_trunk")]
    same({name: a[name] for name in trunk}, {name: b[name] for name in trunk})
    policies["b"].learn_on_batch(experience(policies["b"]))
    new, old = policies["a"].get_weights(), a
    assert all(not np.array_equal(new[name], old[name]) for name in trunk)
    same({name: new[name] for name in trunk}, {name: policies["b"].get_weights()[name] for name in trunk})
    np.testing.assert_array_equal(new["policy_head.weight"], old["policy_head.weight"])


def test_policies_on_different_devices_cannot_share():
    # The parts would be on one device, and the rest of the model on the other.
    policies = {"a": make(), "b": make()}
    policies["b"].device = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"parts of the models differ(.|\n)*on cpu(.|\n)*on cuda"):
        SharedVariables({"trunk": SharedParts(parts=("policy_trunk",))}, policies)


def test_targets_begin_with_the_shared_parts():
    policies = {name: make("TorchDQN", seed=seed) for name, seed in (("a", 1), ("b", 2))}
    SharedVariables({"trunk": SharedParts(parts=("trunk",))}, policies)
    for policy in policies.values():
        same({name: target.numpy() for name, target in policy.targets.items()}, policy.get_weights())
