"""The sizes of microbatches; that a policy learns the same from them is in `test_contract`."""

from dataclasses import replace
from typing import Any

import pytest

from rollax.algorithms.ppo import PPO
from tests.policy import test_recurrent_policy as recurrent
from tests.policy.small_ppo import experience, make


def in_parts(micro: int, make: Any = make, **config: Any) -> tuple[Any, list[int]]:
    """A policy that learns in microbatches, and the sizes for which its loss is compiled."""
    sizes: list[int] = []

    class Parts(PPO):
        def make_plan(self) -> Any:
            return replace(super().make_plan(), microbatch_size=micro)

        def loss(self, model: Any, out: Any, batch: Any, mask: Any, coefficients: Any) -> Any:
            sizes.append(len(mask))
            return super().loss(model, out, batch, mask, coefficients)

    return make(cls=Parts, **config), sizes


@pytest.mark.long
def test_microbatches_hold_at_least_one_sequence():
    policy, sizes = in_parts(1, recurrent.make, sgd_minibatch_size=8, num_sgd_iter=2)
    policy.learn_on_batch(recurrent.experience(policy, [6, 2]))
    assert set(sizes) == {4}


@pytest.mark.long
def test_microbatches_as_large_as_the_minibatch_have_no_effect():
    parts, sizes = in_parts(8)
    policies = [make(), parts]
    batch = experience(policies[0], 16)
    stats = [policy.learn_on_batch(batch) for policy in policies]
    assert stats[0] == stats[1]
    assert set(sizes) == {8}
