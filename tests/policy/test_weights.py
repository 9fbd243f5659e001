"""Weights and gradients that are no arrays of real numbers, in JAX and PyTorch; vectors of parameters of ARS."""

import numpy as np
import pytest
from gymnasium import spaces

from examples.torch_ppo import TorchPPO
from rollax import PolicyError, SampleBatch
from rollax.algorithms.ppo import PPO
from rollax.errors import ShapeError
from rollax.search.ars import ARS

SEEN, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
SMALL = {"model": {"fcnet_hiddens": (4,)}, "seed": 0}
NONE, WORDS = np.full((2,), None), np.full((2,), "1")
each = pytest.mark.parametrize("policy_class", [PPO, TorchPPO])


@each
@pytest.mark.parametrize("wrong", [NONE, WORDS, np.ones(2) * 1j, [None, None], ["1", "2"]])
def test_arrays_without_real_numbers_are_refused(policy_class, wrong):
    policy = policy_class.make_policy(SEEN, CHOICES, SMALL)
    before = policy.get_weights()
    message = r"no real numbers(.|\n)*policy 'default_policy'.*policy_head.bias(.|\n)*dtype (object|<U1|complex128)"
    for call in (policy.set_weights, policy.apply_gradients):
        with pytest.raises(PolicyError, match=message):
            call({**before, "policy_head.bias": wrong})
        np.testing.assert_equal(policy.get_weights(), before)


@each
def test_lists_of_numbers_are_accepted(policy_class):
    policies = [policy_class.make_policy(SEEN, CHOICES, SMALL) for _ in range(2)]
    weights = {name: array + 1 for name, array in policies[0].get_weights().items()}
    lists = {name: array.tolist() for name, array in weights.items()}
    for policy, given in zip(policies, (weights, lists), strict=True):
        policy.set_weights(given)
        np.testing.assert_equal(policy.get_weights(), weights)
        policy.apply_gradients(given)
    assert policies[0].get_weights()["policy_head.bias"][0] != weights["policy_head.bias"][0]
    np.testing.assert_equal(*(policy.get_weights() for policy in policies))


def test_vectors_of_a_searched_policy():
    policy = ARS.make_policy(SEEN, CHOICES, SMALL)
    vector = policy.get_vector()
    np.testing.assert_equal(dict(policy.parts_of(vector)), policy.get_weights())
    for wrong in (vector[1:], np.append(vector, 0), vector[None]):
        with pytest.raises(ShapeError, match=rf"algorithm ARS, parts_of(.|\n)*expected: \({len(vector)},\)"):
            policy.parts_of(np.asarray(wrong, np.float32))
    with pytest.raises(PolicyError, match="does not implement td_errors"):
        policy.td_errors(SampleBatch({"obs": np.zeros((2, 3), np.float32)}))
