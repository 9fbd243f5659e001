"""Normalized rewards, against numbers derived by hand, and in runs of every on-policy algorithm."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PQN
from rollax.algorithms.registry import algorithms_with, get_trainer_class
from tests.algorithms.contract.cases import settings
from tests.algorithms.running_sums import check_restored_run, fragment, moments, postprocessed, train_until
from tests.algorithms.tables import TABLE
from tests.marks import long_except

STATES = spaces.Discrete(4)
NAMES = algorithms_with("normalize_rewards")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NAMES},
    "APPO without V-trace": ("APPO", {"vtrace": False}),
}


def policy_of(**config: Any) -> Any:
    return PQN.make_policy(STATES, spaces.Discrete(2), {**TABLE, "lambda_": 0.0, "normalize_rewards": True, **config})


def test_by_hand_over_two_fragments():
    # γ = ½. Trajectory 0 terminates, trajectory 1 goes on in the second fragment.
    #   fragment  trajectory  r        R = ½ R + r
    #      1          0       4, 2     4, 4
    #      1          1       2, -2    2, -1
    #      2          1       3        2.5          from -1
    #      2          2       6        6            from 0, in the slot of trajectory 0
    policy = policy_of(gamma=0.5)
    first = postprocessed(policy, fragment([4, 2, 2, -2], [0, 0, 1, 1], [1, 3], terminated=[1]))
    deviation = np.std([4, 4, 2, -1])
    np.testing.assert_allclose(first["rewards"], np.array([4, 2, 2, -2]) / deviation, rtol=1e-6)
    second = postprocessed(policy, fragment([3, 6], [1, 0], [0, 1], trajectories=[1, 2]))
    deviation = np.std([4, 4, 2, -1, 2.5, 6])
    np.testing.assert_allclose(second["rewards"], np.array([3, 6]) / deviation, rtol=1e-6)
    # The returns are of the normalized rewards: r with λ = 0, and values of 0.
    np.testing.assert_allclose(second["value_targets"], second["rewards"], rtol=1e-6)


def test_an_own_postprocess_gets_normalized_rewards():
    # γ = 0: the sums are the rewards, of which 4 and 0 have the deviation 2.
    class Own(PQN):
        def postprocess(self, fragment, values):
            fragment["value_targets"] = fragment["rewards"]
            return fragment

    policy = Own.make_policy(STATES, spaces.Discrete(2), {**TABLE, "gamma": 0.0, "normalize_rewards": True})
    rows = postprocessed(policy, fragment([4, 0], [0, 0], [1]))
    np.testing.assert_allclose(rows["value_targets"], [2, 0], rtol=1e-6)


@pytest.mark.parametrize(("reward", "expected"), [(5.0, 10.0), (-5.0, -10.0), (0.0, 0.0)])
def test_a_rare_reward_is_clipped(reward, expected):
    # Of 200 rewards one is not 0: the deviation is 5 · √(199 / 200²) = 0.353 with γ = 0, so that 5 would become 14.2.
    # Without any, the variance is 0.
    rewards = np.zeros(200)
    rewards[-1] = reward
    rows = postprocessed(policy_of(gamma=0.0), fragment(rewards, [0] * 200, [199]))
    assert rows["rewards"][-1] == expected
    assert not rows["rewards"][:-1].any()


def run_of(name: str, **changes: Any) -> Any:
    config = {**settings(name), "normalize_rewards": True, "num_envs_per_worker": 2, **changes}
    return get_trainer_class(name)(config={"env": "CartPole-v1", **config})


@pytest.mark.long
@pytest.mark.parametrize("variant", long_except({"PPO", "PQN"}, VARIANTS))
def test_results_have_the_rewards_of_the_environment_and_a_restored_run_continues_exactly(variant, tmp_path):
    name, options = variant
    with run_of(name, **options) as trainer:
        result = train_until(trainer)
        assert moments(trainer)["~/returns/count"] >= result["timesteps_total"] - 40
        check_restored_run(trainer, lambda: run_of(name, **options), tmp_path, ["returns"])


def test_it_is_off_by_default():
    policy = policy_of(normalize_rewards=False)
    rows = postprocessed(policy, fragment([4, 2], [0, 0], [1]))
    np.testing.assert_array_equal(rows["rewards"], [4, 2])
    assert not policy.running_statistics
    assert "slot" not in policy.algorithm.samples
