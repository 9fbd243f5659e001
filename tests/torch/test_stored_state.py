"""The state of a `TorchPolicy` besides its model, other optimizers, and shared variables."""

from collections import deque
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax import Outputs, TorchPolicy
from rollax.config.multiagent import SharedParts
from rollax.errors import CheckpointError, ConfigError
from rollax.policy.shared_variables import SharedVariables
from tests.env.refused import refused
from tests.torch.made import CHOICES, PPO_CONFIG, SEEN, continues_exactly, experience, make, same


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


class Curious(TorchPPO):
    policy_class = CuriousPolicy


def test_state_in_attributes_is_stored():
    policy, other = (Curious.make_policy(SEEN, CHOICES, {**PPO_CONFIG, "seed": seed}) for seed in (3, 9))
    continues_exactly(policy, other)
    assert torch.equal(policy.forward_model.weight, other.forward_model.weight)
    assert other.count["steps"].tolist() == [2, 2]
    state = policy.get_state()
    own = {**state["own"], "forward_model": {".weight": np.zeros(2)}}
    refused(CheckpointError, policy.set_state, {**state, "own": own}, says="attribute forward_model")


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


@pytest.mark.parametrize("name", ["Adafactor", "NAdam", "SGD"])
def test_other_optimizers_are_restored(name):
    class Other(TorchPPO):
        def make_optimizer(self, params, model):
            return getattr(torch.optim, name)(params, **({"momentum": 0.9} if name == "SGD" else {}))

    continues_exactly(*(Other.make_policy(SEEN, CHOICES, {**PPO_CONFIG, "seed": seed}) for seed in (1, 2)))


def test_a_state_from_before_a_parameter_had_gradients_is_restored():
    class ValuesFirst(TorchPPO):
        def loss(self, model, out, batch, mask, coefficients):
            loss, statistics = super().loss(model, out, batch, mask, coefficients)
            return loss if coefficients["num_updates"] >= 4 else out.value.square().mean(), statistics

    policy = ValuesFirst.make_policy(SEEN, CHOICES, PPO_CONFIG)
    batch = experience(policy)
    policy.learn_on_batch(batch)  # 4 gradient steps
    state, found = policy.get_state(), []
    assert not any(name.startswith("policy_head") for name in state["optimizer"])
    for _ in range(2):
        policy.set_state(state)
        policy.learn_on_batch(batch)
        found.append(policy.get_weights())
    same(*found)


class Scaled(nn.Module):
    """Has a float64 parameter []."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, obs):
        return Outputs(self.policy(obs) * self.scale, self.value(obs)[:, 0])


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


@pytest.mark.parametrize("optimizer", [None, Counting])
def test_numbers_and_tensors_of_an_optimizer_keep_their_types(optimizer):
    class Other(TorchPPO):
        def make_optimizer(self, params, model):
            return super().make_optimizer(params, model) if optimizer is None else optimizer(params, lr=0.0)

    config = {**PPO_CONFIG, "model": {"custom_model": Scaled}}
    continues_exactly(*(Other.make_policy(SEEN, CHOICES, {**config, "seed": seed}) for seed in (1, 2)))


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
