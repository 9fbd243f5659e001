"""Advantages and value targets that PPO, A3C and APPO without V-trace learn from."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import APPO, PPO, JaxPolicy, RolloutWorker, SampleBatch
from rollax.algorithms.a3c import A3C
from rollax.batch import Fragment
from tests.algorithms.envs import Corridor
from tests.algorithms.tables import TABLE, f32

ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "PPO": (PPO, {"sgd_minibatch_size": 4}),
    "A3C": (A3C, {}),
    "APPO": (APPO, {"vtrace": False}),
}
each_algorithm = pytest.mark.parametrize(("algorithm", "options"), ALGORITHMS.values(), ids=ALGORITHMS)


@each_algorithm
def test_bootstraps_by_hand(algorithm, options):
    # γ = 0.1 and λ = 1: A_t + V_t reads as digits; the last digit is the bootstrap value of the segment.
    config = {**TABLE, **options, "gamma": 0.1, "lambda": 1.0}
    policy = algorithm.make_policy(spaces.Discrete(10), spaces.Discrete(2), config)
    policy.set_weights({**policy.get_weights(), "values": f32(*[0] * 7, 7, 8, 9)})
    batch = Fragment(
        {
            "obs": np.arange(7),
            "rewards": f32(1, 2, 3, 4, 5, 6, 1),
            "vf_preds": f32(0, 0, 0, 0, 0, 0, 0.5),
            "terminateds": np.array([0, 1, 0, 0, 0, 0, 0], bool),
            "truncateds": np.array([0, 0, 0, 1, 0, 0, 0], bool),
        },
        [1, 3, 5, 6],  # terminated, truncated, cut, cut
        {"obs": np.array([7, 7, 8, 9])},
    )
    policy.postprocess_rows(batch)
    np.testing.assert_allclose(batch["value_targets"], f32(1.2, 2, 3.47, 4.7, 5.68, 6.8, 1.9), rtol=1e-6)
    np.testing.assert_allclose(batch["advantages"], f32(1.2, 2, 3.47, 4.7, 5.68, 6.8, 1.4), rtol=1e-6)


@pytest.mark.short(every=5)
@each_algorithm
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_of_batches_of_a_worker(algorithm, options, batch_mode):
    # Each step earns 1 and leads from state s to s + 1. Episodes of sub-environment 0 terminate in state 3, those of 1
    # are truncated there. With λ = 0: A = 1 + γ V(s + 1) - V(s), but V(3) counts only where it was truncated.
    sizes = {"num_envs_per_worker": 2, "rollout_fragment_length": 4, "batch_mode": batch_mode}
    config = algorithm.config_class(**TABLE, **options, **sizes, gamma=0.5, lambda_=0.0)
    worker = RolloutWorker(Corridor, algorithm, config=config)
    policy, value = worker.get_policy(), f32(10, 20, 40, 80)
    assert isinstance(policy, JaxPolicy)
    policy.set_weights({**policy.get_weights(), "values": value})
    for _ in range(3):
        batch = worker.sample()
        assert isinstance(batch, SampleBatch)
        assert batch.count >= 8
        assert "bootstrap" not in batch
        state, terminated, truncated = batch["obs"], batch["terminateds"], batch["truncateds"]
        assert terminated.any()
        assert truncated.any()
        np.testing.assert_array_equal(terminated | truncated, state == 2)
        expected = 1 + 0.5 * np.where(terminated, 0, value[state + 1]) - value[state]
        np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-5)
        np.testing.assert_allclose(batch["value_targets"], expected + value[state], rtol=1e-5)
    if algorithm is APPO:
        assert policy.learn_on_batch(batch)["kl"] == pytest.approx(0, abs=1e-6)
