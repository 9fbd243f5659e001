"""A policy learns the same from microbatches as from whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollax.algorithms.ppo import PPO
from tests.policy import test_recurrent_policy as recurrent
from tests.policy.small_ppo import experience, make

_NOT_A_MEAN = "vf_explained_var"


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


def compared(whole: Any, parts: Any, batch: Any) -> None:
    (expected, stats), (gradients, got) = whole.compute_gradients(batch), parts.compute_gradients(batch)
    for name, value in expected.items():
        np.testing.assert_allclose(gradients[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    for name in stats.keys() - {_NOT_A_MEAN}:
        np.testing.assert_allclose(got[name], stats[name], rtol=1e-4, atol=1e-6, err_msg=name)
    stats, got = whole.learn_on_batch(batch), parts.learn_on_batch(batch)
    for name, value in whole.get_weights().items():
        # Adam divides by the size of gradients, which enlarges rounding differences of small ones.
        np.testing.assert_allclose(parts.get_weights()[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    for name in stats.keys() - {_NOT_A_MEAN}:
        np.testing.assert_allclose(got[name], stats[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.long
def test_microbatches_of_rows():
    # 21 rows: minibatches of 8, 8 and 5, in parts of 3, 3 and 2, and 3 and 2 with an empty one.
    config = {"kl_coeff": 0.3, "entropy_coeff": 0.01}
    whole, (parts, sizes) = make(**config), in_parts(3, **config)
    compared(whole, parts, experience(whole, 21))
    assert set(sizes) == {3}


@pytest.mark.long
def test_microbatches_of_sequences_are_weighted_by_rows():
    # Sequences of at most 4 rows: of 4, 2; 2; 4, 4, 1; 3. Minibatches of 5 of them, and of 2, in parts of 2.
    config = {"sgd_minibatch_size": 20, "num_sgd_iter": 2}
    whole, (parts, sizes) = recurrent.make(**config), in_parts(11, recurrent.make, **config)
    compared(whole, parts, recurrent.experience(whole, [6, 2, 9, 3]))
    assert set(sizes) == {8}


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
