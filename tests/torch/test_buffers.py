"""Buffers of user-defined models in PyTorch: replaced ones, and those whose new values travel with gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from rollax import Outputs
from rollax.errors import NonFiniteError, PolicyError
from tests.env.refused import refused
from tests.torch.made import continues_exactly, experience, make, same
from tests.torch.test_own_models import Stateful, TwoLinears


class RunningMean(nn.Module):
    """A model that replaces its buffer, while layers of PyTorch change theirs in place."""

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

    def test_replaced_buffers_are_weights(self):
        policy, other = self.policy(), self.policy(seed=9)
        batch = experience(policy)
        policy.learn_on_batch(batch)
        mean = (1 - 0.75**2) * batch["obs"].mean(axis=0)  # after two steps
        np.testing.assert_allclose(policy.get_weights()["mean"], mean, rtol=1e-5)
        continues_exactly(policy, other)
        np.testing.assert_array_equal(other.model.mean, policy.model.mean)

    @pytest.mark.parametrize("newer", [None, torch.zeros(()), torch.zeros(4)], ids=["None", "number", "longer"])
    def test_another_shape_is_named(self, newer):
        class Grows(TwoLinears):
            def __init__(self, observation_space, num_outputs):
                super().__init__(observation_space, num_outputs)
                self.register_buffer("past", torch.ones(3))

            def forward(self, obs):
                if self.training:
                    self.past = newer
                return super().forward(obs)

        policy = make(model={"custom_model": Grows})
        batch, before = experience(policy), policy.get_weights()
        for call in (policy.learn_on_batch, policy.compute_gradients):
            refused(PolicyError, call, batch, says="another shape...Grows, buffer 'past'...expected: (3,)")
        same(policy.get_weights(), before)

    def test_dimensions_of_one_may_come_and_go(self):
        class Counts(TwoLinears):
            def __init__(self, observation_space, num_outputs):
                super().__init__(observation_space, num_outputs)
                self.register_buffer("calls", torch.zeros(1))

            def forward(self, obs):
                if self.training:
                    self.calls = self.calls.sum() + 1
                return super().forward(obs)

        policy = make(model={"custom_model": Counts}, num_sgd_iter=2, sgd_minibatch_size=16)
        policy.learn_on_batch(experience(policy))
        np.testing.assert_array_equal(policy.get_weights()["calls"], [policy.learner.num_updates])

    def test_a_failed_update_does_not_change_them(self):
        policy = self.policy()
        batch = experience(policy)
        policy.learn_on_batch(batch)
        before = policy.get_weights()
        batch["value_targets"][:] = np.inf
        refused(NonFiniteError, policy.learn_on_batch, batch)
        same(policy.get_weights(), before)
        np.testing.assert_array_equal(policy.model.mean, before["mean"])


class TestGradientsWithBuffers:
    """Running statistics are sent with the gradients, and change a policy only when applied."""

    @pytest.mark.parametrize(("model", "name"), [(Stateful, "norm.running_mean"), (RunningMean, "mean")])
    def test_statistics_reach_the_driver(self, model, name):
        worker, driver = (make(model={"custom_model": model}) for _ in range(2))
        before, batch = driver.get_weights(), experience(worker)
        gradients, _ = worker.compute_gradients(batch)
        same(worker.get_weights(), before)
        assert "fixed" not in gradients  # unchanged state is not sent
        driver.apply_gradients(gradients)
        momentum = 0.1 if model is Stateful else 0.25
        np.testing.assert_allclose(driver.get_weights()[name], momentum * batch["obs"].mean(axis=0), rtol=1e-5)

    def test_bad_rows_change_nothing(self):
        policy = make(model={"custom_model": Stateful})
        before, batch = policy.get_weights(), experience(policy)
        batch["obs"][:] = np.nan
        gradients, _ = policy.compute_gradients(batch)
        refused(NonFiniteError, policy.apply_gradients, gradients)
        finite = {name: np.zeros_like(value) for name, value in before.items()}
        with pytest.raises(NonFiniteError, match="the new value of norm.running_mean"):
            policy.apply_gradients({**finite, "norm.running_mean": np.full(3, np.nan)})
        same(policy.get_weights(), before)

    def test_an_exception_in_the_loss_changes_nothing(self, monkeypatch):
        policy = make(model={"custom_model": Stateful})
        before = policy.get_weights()

        def broken(*_):
            raise KeyboardInterrupt

        monkeypatch.setitem(vars(policy.algorithm), "loss", broken)
        with pytest.raises(KeyboardInterrupt):
            policy.compute_gradients(experience(policy))
        same(policy.get_weights(), before)
