"""The numbers of a loss that change between updates: those that adapt, and those of a policy class."""

from rollax import PG, JaxPolicy
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
