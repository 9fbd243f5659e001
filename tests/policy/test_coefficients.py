"""The numbers of a loss that change between updates: those that adapt, and those of a policy class."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from rollax import PG, JaxPolicy, PolicyError
from rollax.batch import Fragment
from rollax.core.running_statistics import RunningMoments
from rollax.policy.running_returns import RunningReturns
from tests.policy.small_ppo import CHOICES, SEEN, experience

CONFIG = {"model": {"fcnet_hiddens": (8,)}, "seed": 0}


class ScaledPolicy(JaxPolicy):
    def coefficients(self):
        return {**super().coefficients(), "scale": 0.5 if self.timestep < 1000 else 1.0}


class Scaled(PG):
    """Its weight doubles with each update."""

    policy_class = ScaledPolicy

    def first_numbers(self):
        return {"weight": 3.0}

    def after_update(self, numbers, statistics):
        return {"weight": 2 * numbers["weight"]}, {**statistics, "used": numbers["weight"]}

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return loss, {**statistics, "scale": coefficients["scale"], "weight": coefficients["weight"]}


def learned(policy, batch):
    statistics = policy.learn_on_batch(batch)
    return [statistics[name] for name in ("scale", "weight", "used")]


def test_the_loss_gets_the_current_numbers_without_another_compilation():
    policy = Scaled.make_policy(SEEN, CHOICES, CONFIG)
    batch = experience(policy, 8)
    assert learned(policy, batch) == [0.5, 3.0, 3.0]
    compiled = policy.compilations()
    policy.timestep = 1000
    assert learned(policy, batch) == [1.0, 6.0, 6.0]
    assert policy.compilations() == compiled


def test_numbers_that_adapt_are_stored():
    policy, other = (Scaled.make_policy(SEEN, CHOICES, CONFIG) for _ in range(2))
    learned(policy, batch := experience(policy, 8))
    other.set_state(policy.get_state())
    assert learned(other, batch) == [0.5, 6.0, 6.0]


def test_all_values_and_names_of_numbers_are_restored():
    class Counting(PG):
        def first_numbers(self):
            return {"count": 0.0, "share": 1.0, "log_scale": 0.5, "best": -math.inf, "timestep": 0.5}

    policy, other = (Counting.make_policy(SEEN, CHOICES, CONFIG) for _ in range(2))
    policy.numbers = {"count": 7.0, "share": 0.0, "log_scale": -0.5, "best": -math.inf, "timestep": 0.25}
    other.set_state(policy.get_state())
    assert other.numbers == policy.numbers


def test_numbers_may_be_scalars_of_jax():
    class Halving(PG):
        def first_numbers(self):
            return {"weight": jnp.float32(1)}

        def after_update(self, numbers, statistics):
            return {"weight": jnp.maximum(numbers["weight"] / 2, 0.1)}, statistics

    policy, other = (Halving.make_policy(SEEN, CHOICES, CONFIG) for _ in range(2))
    policy.reported_after({}, 1)
    other.set_state(policy.get_state())
    assert other.numbers == {"weight": 0.5}


class Measured(PG):
    """It reports what its loss reads of the running statistics."""

    def make_running_statistics(self):
        return {"pairs": RunningMoments((2,)), "returns": RunningReturns(0.5)}

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        pairs, returns = (coefficients["running_statistics"][name] for name in ("pairs", "returns"))
        read = {"second": pairs["mean"][1], "deviation": pairs["deviation"][0], "largest": returns["largest"]}
        return loss, {**statistics, **read}


def test_running_returns_of_a_column_that_is_not_sampled_are_refused():
    class Misspelled(PG):
        def make_running_statistics(self):
            return {"returns": RunningReturns(0.5, column="reward")}

    rows = Fragment({"rewards": np.ones(2, np.float32)}, np.array([1]), {})
    with pytest.raises(PolicyError) as caught:
        Misspelled.make_policy(SEEN, CHOICES, CONFIG).prepare_rows(rows)
    assert caught.value.parts["got"] == "reward"


def test_the_loss_reads_the_current_running_statistics_without_another_compilation():
    policy = Measured.make_policy(SEEN, CHOICES, CONFIG)
    batch = experience(policy, 8)

    def read():
        statistics = policy.learn_on_batch(batch)
        return [statistics[name] for name in ("second", "deviation", "largest")]

    assert read() == [0.0, 1.0, 0.0]
    compiled = policy.compilations()
    policy.running_statistics["pairs"].update([[1, 4], [5, 8]])
    policy.running_statistics["returns"].update([3, -7])
    np.testing.assert_allclose(read(), [6, 2, 7], rtol=1e-6)
    assert policy.compilations() == compiled


def test_without_running_statistics_there_is_no_such_coefficient():
    assert "running_statistics" not in Scaled.make_policy(SEEN, CHOICES, CONFIG).coefficients()
