"""Buffers of user-defined models in PyTorch: replaced ones, and those whose new values travel with gradients."""

import numpy as np
import pytest
import torch

from rollax.errors import NonFiniteError, PolicyError
from tests.env.refused import refused
from tests.torch.made import continues_exactly, experience, make, same
from tests.torch.test_own_models import Replacing, Stateful


def moved(mean, obs):
    return 0.75 * mean + 0.25 * obs.mean(dim=0)


MEAN = {"custom_model": Replacing, "custom_model_config": {"first": torch.zeros(3), "newer": moved}}


class TestReplacedBuffers:
    """Layers of PyTorch change their buffers in place instead."""

    def policy(self, **changes):
        return make(model=MEAN, num_sgd_iter=2, sgd_minibatch_size=16, **changes)

    def test_replaced_buffers_are_weights(self):
        policy, other = self.policy(), self.policy(seed=9)
        batch = experience(policy)
        policy.learn_on_batch(batch)
        mean = (1 - 0.75**2) * batch["obs"].mean(axis=0)  # after two steps
        np.testing.assert_allclose(policy.get_weights()["buffer"], mean, rtol=1e-5)
        continues_exactly(policy, other)
        np.testing.assert_array_equal(other.model.buffer, policy.model.buffer)

    @pytest.mark.parametrize("newer", [None, torch.zeros(()), torch.zeros(4)], ids=["None", "number", "longer"])
    def test_another_shape_is_named(self, newer):
        config = {"first": torch.ones(3), "newer": lambda past, obs: newer}
        policy = make(model={"custom_model": Replacing, "custom_model_config": config})
        batch, before = experience(policy), policy.get_weights()
        for call in (policy.learn_on_batch, policy.compute_gradients):
            refused(PolicyError, call, batch, says="another shape...Replacing, buffer 'buffer'...expected: (3,)")
        same(policy.get_weights(), before)

    def test_dimensions_of_one_may_come_and_go(self):
        config = {"first": torch.zeros(1), "newer": lambda calls, obs: calls.sum() + 1}
        policy = make(model={"custom_model": Replacing, "custom_model_config": config})
        policy.learn_on_batch(experience(policy))
        np.testing.assert_array_equal(policy.get_weights()["buffer"], [policy.learner.num_updates])

    def test_a_failed_update_does_not_change_them(self):
        policy = self.policy()
        batch = experience(policy)
        policy.learn_on_batch(batch)
        before = policy.get_weights()
        batch["value_targets"][:] = np.inf
        refused(NonFiniteError, policy.learn_on_batch, batch)
        same(policy.get_weights(), before)
        np.testing.assert_array_equal(policy.model.buffer, before["buffer"])


class TestGradientsWithBuffers:
    """Running statistics are sent with the gradients, and change a policy only when applied."""

    @pytest.mark.parametrize(
        ("model", "name", "momentum"), [({"custom_model": Stateful}, "norm.running_mean", 0.1), (MEAN, "buffer", 0.25)]
    )
    def test_statistics_reach_the_driver(self, model, name, momentum):
        worker, driver = (make(model=model) for _ in range(2))
        before, batch = driver.get_weights(), experience(worker)
        gradients, _ = worker.compute_gradients(batch)
        same(worker.get_weights(), before)
        assert "fixed" not in gradients  # unchanged state is not sent
        driver.apply_gradients(gradients)
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
