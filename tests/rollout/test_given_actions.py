"""Actions of an earlier version of a policy, with the log-probabilities that clients send."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import Policy, TrainerConfig
from rollax.rollout.filters import NoFilter
from rollax.rollout.given_actions import with_given_actions
from rollax.rollout.policy_runner import PolicyRunner

OBS, CHOICES = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)


class Unknowing(Policy):
    """Knows the log-probabilities of its own actions only."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        raise AssertionError


class Knowing(Unknowing):
    def fetches_of(self, actions, fetches):
        return {"action_logp": np.full(len(actions), -11, np.float32)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Knowing, [-11, -6, -12]), (Unknowing, [-1, 3, -12])],  # -11 + 5; no bound if it is not known
)
def test_bounds_are_relative_to_the_current_log_probability(kind, expected):
    runner = PolicyRunner.of(kind(OBS, CHOICES), TrainerConfig(), NoFilter(OBS))
    own = {"action_logp": np.array([-1, -np.inf, -1], np.float32)}
    actions, fetches = with_given_actions(runner, np.zeros(3, int), own, np.array([1, 2]), [2, 1], {1: 3.0, 2: -12.0})
    assert actions.tolist() == [0, 2, 1]
    assert fetches["action_logp"].tolist() == expected
    assert own["action_logp"].tolist() == [-1, -np.inf, -1]
