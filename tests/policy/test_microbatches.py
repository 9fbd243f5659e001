"""A policy learns the same from microbatches as from whole batches."""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollax.algorithms.dqn import DQN
from rollax.algorithms.ppo import PPO
from rollax.batch import SampleBatch
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


@pytest.mark.long
def test_each_row_has_its_error_for_prioritized_replay():
    class Parts(DQN):
        def make_plan(self) -> Any:
            return replace(super().make_plan(), microbatch_size=3)

    rng, rows = np.random.default_rng(0), 8
    columns = {name: rng.normal(size=(rows, 2)).astype(np.float32) for name in ("obs", "new_obs")}
    columns |= {name: rng.random(rows).astype(np.float32) for name in ("rewards", "discounts", "weights")}
    batch = SampleBatch({**columns, "actions": rng.integers(2, size=rows), "indices": np.arange(rows)})
    spaces = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)
    config = {"train_batch_size": rows, "seed": 0, "model": {"fcnet_hiddens": [4]}}
    whole, parts = (kind.make_policy(*spaces, config).learn_on_batch(batch) for kind in (DQN, Parts))
    np.testing.assert_allclose(parts["td_error"], whole["td_error"], rtol=1e-5)
