"""Acting and learning have separate random streams from one seed, so that any process may act."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.policy.policy import Policy
from tests.policy.small_ppo import experience, make, seen


def test_streams_differ_and_depend_on_the_seed():
    draws = [make(seed=seed) for seed in (3, 3, 4)]
    acting, learning = ([getattr(policy, name).random() for policy in draws] for name in ("acting_rng", "learning_rng"))
    assert acting[0] == acting[1] != acting[2]
    assert learning[0] == learning[1] != learning[2]
    assert acting[0] != learning[0]


def test_high_bits_of_seeds_change_the_weights():
    kernels = [make(seed=seed).get_weights() for seed in (1, 2**32 + 1, 2**40 + 1)]
    names = [name for name, value in kernels[0].items() if value.ndim == 2]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert all((kernels[first][name] != kernels[second][name]).any() for name in names)


def test_acting_state_is_taken_from_another_process():
    # One policy that learns and one that acts, as in another process, equal a single policy that does both.
    whole, driver, worker = make(), make(), make()
    for seed in range(3):
        batch = experience(whole, 24, seed)
        worker.set_weights(driver.get_weights())
        np.testing.assert_array_equal(experience(worker, 24, seed)["actions"], batch["actions"])
        assert whole.learn_on_batch(batch) == driver.learn_on_batch(batch)
    driver.set_acting_state(worker.get_acting_state())
    resumed = make(seed=99)
    resumed.set_state(driver.get_state())
    expected = whole.compute_actions(seen(64))[0]
    for one in (driver, resumed):
        np.testing.assert_array_equal(one.compute_actions(seen(64))[0], expected)


class Counting(Policy):
    """Actions 0, 1, 2, ... in turn."""

    count = 0

    def compute_actions(self, obs_batch: Any) -> Any:
        self.count += 1
        return [self.count] * len(obs_batch), [], {}

    def get_acting_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_acting_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


class Plain(Counting):
    """Without an acting state."""

    get_acting_state = Policy.get_acting_state
    set_acting_state = Policy.set_acting_state


def test_any_policy_may_have_an_acting_state():
    spaces_ = spaces.Discrete(2), spaces.Discrete(100)
    policy, other, plain = Counting(*spaces_), Counting(*spaces_), Plain(*spaces_)
    for one in (policy, plain):
        one.compute_actions(np.zeros(1))
    other.set_state(policy.get_state())
    assert other.compute_actions(np.zeros(1))[0] == [2]
    assert plain.get_acting_state() == plain.get_state()["acting"] == {}
    other.set_state(plain.get_state() | {"acting": {"count": 5}})
    assert other.count == 5
