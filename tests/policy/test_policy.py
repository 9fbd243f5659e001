"""The abstract policy: methods that a user-defined policy in plain NumPy must implement, and inherited ones."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import Policy, SampleBatch
from rollax.errors import PolicyError

SEEN, CHOICES = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(5)


class Threshold(Policy):
    """Takes few arguments, returns lists, and has a plain number as its weight."""

    def __init__(self, observation_space, action_space, config=None):
        super().__init__(observation_space, action_space, config)
        self.limit = 0.5

    def compute_actions(self, obs_batch, explore=True):
        return [int(row[0] > self.limit) for row in obs_batch], [], {}

    def get_weights(self):
        return {"limit": self.limit}

    def set_weights(self, weights):
        self.limit = weights["limit"]


class Nested(Policy):
    def compute_actions(self, obs_batch, **rest):
        rows = len(obs_batch)
        return {"a": np.arange(rows), "b": (np.zeros((rows, 2)),)}, [np.full((rows, 3), 7.0)], {"v": np.ones(rows)}


class Listed(Policy):
    def compute_actions(self, obs_batch, state_batches=()):
        return [{"a": 1, "b": 2}], state_batches, {}


def test_compute_actions_is_abstract():
    with pytest.raises(TypeError, match="compute_actions"):
        Policy(SEEN, CHOICES)  # pyright: ignore[reportAbstractUsage]


def test_single_actions():
    obs = np.array([0.7, 0], np.float32)
    assert Threshold(SEEN, CHOICES).compute_single_action(obs) == 1
    nested = Nested(SEEN, CHOICES).compute_single_action(obs)
    assert nested["a"] == 0
    np.testing.assert_array_equal(nested["b"][0], [0, 0])
    assert Listed(SEEN, CHOICES).compute_single_action(obs) == {"a": 1, "b": 2}
    action, state, fetches = Nested(SEEN, CHOICES).compute_single_action(obs, state=[])
    assert action["a"] == 0
    np.testing.assert_array_equal(state[0], [7, 7, 7])
    assert fetches == {"v": 1.0}
    _, state, _ = Listed(SEEN, CHOICES).compute_single_action(obs, state=[np.arange(3)])
    np.testing.assert_array_equal(state[0], [0, 1, 2])


def test_state_is_weights_and_timestep():
    policy, other = Threshold(SEEN, CHOICES), Threshold(SEEN, CHOICES)
    policy.limit, policy.timestep = 0.25, 12
    other.set_state(policy.get_state())
    assert (other.limit, other.timestep) == (0.25, 12)


def test_weights_without_set_weights_are_refused():
    policy = Nested(SEEN, CHOICES)
    policy.set_weights(policy.get_weights())
    with pytest.raises(PolicyError, match=r"does not implement set_weights(.|\n)*class Nested"):
        policy.set_weights({"limit": 1})


@pytest.mark.parametrize("method", ["learn_on_batch", "compute_gradients", "apply_gradients"])
def test_missing_methods_raise_named_errors(method):
    policy = Threshold(SEEN, CHOICES)
    policy.name = "fixed"
    message = rf"not implement {method}(.|\n)*'fixed', class Threshold(.|\n)*policies_to_train"
    with pytest.raises(PolicyError, match=message):
        getattr(policy, method)(SampleBatch({}))
