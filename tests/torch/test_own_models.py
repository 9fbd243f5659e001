"""A user's own model in PyTorch: buffers, tied weights, random numbers, and checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rollax import Outputs
from rollax.errors import ConfigError, NonFiniteError
from tests.torch.made import experience, make, same, seen


class Stateful(nn.Module):
    """A model with dropout, batch statistics, tied weights and a parameter that is not trained."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)
        self.tied = self.policy
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, obs):
        hidden = self.dropout(self.norm(obs))
        return Outputs(self.tied(hidden) * self.fixed, self.value(hidden)[:, 0])


class TestOwnModels:
    def test_buffers_travel_and_tied_weights_are_stored_once(self):
        policy, other = (make(model={"custom_model": Stateful}, seed=seed) for seed in (1, 2))
        names = set(policy.get_weights())
        assert {"norm.running_mean", "norm.num_batches_tracked", "fixed", "policy.weight"} <= names
        assert not any(name.startswith("tied") for name in names)
        policy.learn_on_batch(experience(policy))
        assert policy.get_weights()["norm.running_mean"].any()
        assert policy.get_weights()["fixed"] == 1
        other.set_weights(policy.get_weights())
        same(other.get_weights(), policy.get_weights())
        np.testing.assert_array_equal(
            *(one.compute_actions(seen(4), explore=False)[2]["action_dist_inputs"] for one in (policy, other))
        )

    def test_dropout_draws_from_the_policys_own_stream(self):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        policy = make(model={"custom_model": Stateful})
        other = make(model={"custom_model": Stateful})
        batch = experience(policy)
        policy.learn_on_batch(batch)
        np.testing.assert_array_equal(torch.rand(3), expected)  # the global stream is as it was
        other.set_state(policy.get_state())
        policy.learn_on_batch(batch)
        torch.rand(17)
        other.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_a_module_of_jax_is_refused(self):
        from tests.policy.test_jax_policy import Stateful as OfJax

        with pytest.raises(ConfigError, match=r"no module class of PyTorch(.|\n)*torch.nn.Module"):
            make(model={"custom_model": OfJax})


class RunningMean(nn.Module):
    """A model that replaces its buffer, where layers of PyTorch change theirs in place."""

    def __init__(self, observation_space, num_outputs):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.policy, self.value = nn.Linear(3, num_outputs), nn.Linear(3, 1)

    def forward(self, obs):
        if self.training:
            self.mean = 0.75 * self.mean + 0.25 * obs.mean(dim=0)
        centred = obs - self.mean
        return Outputs(self.policy(centred), self.value(centred)[:, 0])


class TestReplacedBuffers:
    def policy(self, **changes):
        return make(model={"custom_model": RunningMean}, num_sgd_iter=2, sgd_minibatch_size=16, **changes)

    def test_they_are_weights(self):
        policy, other = self.policy(), self.policy(seed=9)
        batch = experience(policy)
        policy.learn_on_batch(batch)
        mean = (1 - 0.75**2) * batch["obs"].mean(axis=0)  # after two steps
        np.testing.assert_allclose(policy.get_weights()["mean"], mean, rtol=1e-5)
        other.set_state(policy.get_state())
        np.testing.assert_allclose(other.model.mean, mean, rtol=1e-5)
        for one in (policy, other):
            one.learn_on_batch(batch)
        same(policy.get_weights(), other.get_weights())

    def test_a_failed_update_leaves_them_as_they_were(self):
        policy = self.policy()
        batch = experience(policy)
        policy.learn_on_batch(batch)
        before = policy.get_weights()
        batch["value_targets"][:] = np.inf
        with pytest.raises(NonFiniteError):
            policy.learn_on_batch(batch)
        same(policy.get_weights(), before)
        np.testing.assert_array_equal(policy.model.mean, before["mean"])
