"""Models with random numbers in acting, which come from the policy's own stream and are part of its state."""

import numpy as np
import pytest
import torch
from torch import nn

from examples.torch_ppo import TorchPPO
from rollax.models.config import ModelConfig
from rollax.offline.estimators.target_policy import action_probabilities
from rollax.torch.networks import ActorCritic
from tests.torch.made import experience, make, own, same, seen
from tests.torch.test_own_models import TwoLinears


class Drawing(TwoLinears):
    """Adds noise to its outputs, also in evaluation mode."""

    def forward(self, obs):
        out = super().forward(obs)
        return out._replace(policy=out.policy + torch.randn_like(out.policy), value=out.value + torch.rand(len(obs)))


class Noisy(Drawing):
    """Explores in training mode: noise, dropout and batch statistics."""

    noisy = True

    def __init__(self, observation_space, num_outputs):
        super().__init__(observation_space, num_outputs)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, obs):
        if self.training:
            self.calls = self.calls + 1
            return super().forward(self.norm(obs))
        return TwoLinears.forward(self, self.norm(obs))


class Standardizing(ActorCritic):
    """Explores as a noisy model, but without noise."""

    noisy = True

    def __init__(self, observation_space, num_outputs):
        super().__init__(observation_space, num_outputs, ModelConfig(fcnet_hiddens=(8,), normalize_observations=True))


def acted(policy):
    """Results of acting with and without exploration."""
    found = []
    for explore in (True, False):
        actions, _, fetches = policy.compute_actions(seen(5), explore=explore)
        found += [actions, fetches["action_dist_inputs"], fetches["vf_preds"]]
    return [*found, policy.compute_values(seen(4))]


def drawing(**changes):
    return make(model={"custom_model": Drawing}, **changes)


class TestDrawing:
    def test_numbers_come_from_the_policys_own_stream(self):
        before = torch.get_rng_state()
        policy, twin = drawing(), drawing()
        first = acted(policy)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(17)
        same(first, acted(twin))
        again = acted(policy)
        assert all(not np.array_equal(*pair) for pair in zip(first[1:3], again[1:3], strict=True))

    def test_probabilities_use_the_policys_own_stream(self):
        before = torch.get_rng_state()
        same(*([action_probabilities(one, seen(3))] for one in (drawing(), drawing())))
        assert torch.equal(torch.get_rng_state(), before)

    def test_restoring_continues_exactly(self):
        policy, other = drawing(), drawing(seed=9)
        acted(policy)
        other.set_state(policy.get_state())
        same(acted(policy), acted(other))
        other.set_acting_state(policy.get_acting_state())
        same(acted(policy), acted(other))

    def test_acting_does_not_change_learning(self):
        policy, twin = drawing(), drawing()
        batch = experience(drawing())
        acted(policy)
        for one in (policy, twin):
            one.learn_on_batch(batch)
        same(policy.get_weights(), twin.get_weights())

    def test_the_probability_of_actions_is_unknown(self):
        policy = drawing()
        actions, _, fetches = policy.compute_actions(seen(2))
        assert policy.behaviour(actions, fetches, explore=True) == {}
        assert make().behaviour(actions, fetches, explore=True) != {}

    def test_with_an_overridden_forward(self):
        def spread(self, model, columns):
            out = TorchPPO.forward(self, model, columns)
            return out._replace(policy=out.policy + torch.randn_like(out.policy))

        before = torch.get_rng_state()
        same(*(acted(own(forward=spread)) for _ in range(2)))
        assert torch.equal(torch.get_rng_state(), before)


def test_models_without_random_numbers_leave_the_stream_to_exploration():
    policy = make()
    before = str(policy.get_acting_state())
    policy.compute_actions(seen(3), explore=False)
    policy.compute_values(seen(3))
    assert str(policy.get_acting_state()) == before


class TestNoisy:
    def test_it_explores_in_training_mode_and_keeps_its_buffers(self):
        policy = make(model={"custom_model": Noisy})
        before = policy.get_weights()
        inputs = [policy.compute_actions(seen(5))[2]["action_dist_inputs"] for _ in range(2)]
        assert not np.array_equal(*inputs)
        same(*([policy.compute_actions(seen(5), explore=False)[2]["action_dist_inputs"]] for _ in range(2)))
        same(policy.get_weights(), before)
        policy.learn_on_batch(experience(policy))
        assert policy.get_weights()["calls"] == policy.learner.num_updates == 4

    def test_it_explores_with_the_running_statistics_of_updates(self):
        policy = make(model={"custom_model": Standardizing})
        inputs = [policy.compute_actions(seen(1), explore=one)[2]["action_dist_inputs"] for one in (True, False)]
        np.testing.assert_array_equal(*inputs)

    @pytest.mark.parametrize("rows", [1, 5])
    def test_restoring_continues_exactly(self, rows):
        policy, other = (make(model={"custom_model": Noisy}, seed=seed) for seed in (1, 2))
        policy.compute_actions(seen(5))
        other.set_state(policy.get_state())
        same(*([one.compute_actions(seen(rows))[2]["action_dist_inputs"]] for one in (policy, other)))
