"""The return values of a loss."""

import jax.numpy as jnp
import pytest

from rollax.algorithms.ppo import PPO
from rollax.errors import PolicyError, ShapeError
from tests.policy.small_ppo import CHOICES, SEEN, SMALL, experience


class TestOwnLoss:
    """Refused return values of a subclass's `loss`."""

    def learned(self, change):
        class Own(PPO):
            def loss(self, *args):
                return change(*super().loss(*args))

        policy = Own.make_policy(SEEN, CHOICES, SMALL)
        return policy.learn_on_batch(experience(policy, 20))

    @pytest.mark.parametrize(
        ("change", "got"),
        [
            (lambda loss, stats: loss, r"Array \[\]"),
            (lambda loss, stats: (loss * jnp.ones(3), stats), r"Array \[3\], dict"),
            (lambda loss, stats: (loss, stats, 1), r"Array \[\], dict, int"),
            (lambda loss, stats: (0.0, stats), "float, dict"),
        ],
    )
    def test_other_return_values(self, change, got):
        with pytest.raises(
            PolicyError, match=rf"not return a number and a dict(.|\n)*algorithm Own, loss\n +got: +({got})\n"
        ):
            self.learned(change)

    def test_a_statistic_of_another_shape(self):
        with pytest.raises(ShapeError, match=r"statistic 'odd' of the loss\n +got: +\(3,\)\n +expected: \(8,\)"):
            self.learned(lambda loss, stats: (loss, {**stats, "odd": jnp.ones(3)}))

    @pytest.mark.long
    def test_statistics_may_be_numbers_and_columns(self):
        assert (
            self.learned(lambda loss, stats: (loss, {**stats, "two": 2, "half": 0.5, "by_row": jnp.ones(8)}))["two"]
            == 2
        )
