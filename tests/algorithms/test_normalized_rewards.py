"""Normalized rewards, against numbers derived by hand, and in runs of every on-policy algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PQN, load_policy
from rollax.algorithms.registry import algorithms_with, get_trainer_class
from rollax.batch import Fragment
from rollax.rollout.postprocess import postprocess
from tests.algorithms.contract.cases import settings
from tests.algorithms.tables import TABLE, f32
from tests.marks import long_except

STATES = spaces.Discrete(4)
NAMES = algorithms_with("normalize_rewards")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in NAMES},
    "APPO without V-trace": ("APPO", {"vtrace": False}),
}


def policy_of(**config: Any) -> Any:
    return PQN.make_policy(STATES, spaces.Discrete(2), {**TABLE, "lambda_": 0.0, "normalize_rewards": True, **config})


def fragment(rewards, slots, trajectories, ends, *, terminated):
    count = len(rewards)
    return Fragment(
        {
            "obs": np.zeros(count, np.int64),
            "rewards": f32(*rewards),
            "vf_preds": np.zeros(count, np.float32),
            "terminateds": np.isin(np.arange(count), terminated),
            "truncateds": np.zeros(count, bool),
            "slot": np.array(slots),
            "trajectory_id": np.array(trajectories),
        },
        ends,
        {"obs": np.zeros(len(ends), np.int64)},
    )


def postprocessed(policy, rows):
    """The rows as sampling passes them to a policy."""
    return postprocess({"default_policy": rows}, {"default_policy": policy})["default_policy"]


def test_by_hand_over_two_fragments():
    # γ = ½. Trajectory 0 terminates, trajectory 1 goes on in the second fragment.
    #   fragment  trajectory  r        R = ½ R + r
    #      1          0       4, 2     4, 4
    #      1          1       2, -2    2, -1
    #      2          1       3        2.5          from -1
    #      2          2       6        6            from 0, in the slot of trajectory 0
    policy = policy_of(gamma=0.5)
    first = postprocessed(policy, fragment([4, 2, 2, -2], [0, 0, 1, 1], [0, 0, 1, 1], [1, 3], terminated=[1]))
    deviation = np.std([4, 4, 2, -1])
    np.testing.assert_allclose(first["rewards"], np.array([4, 2, 2, -2]) / deviation, rtol=1e-6)
    second = postprocessed(policy, fragment([3, 6], [1, 0], [1, 2], [0, 1], terminated=[]))
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
    rows = postprocessed(policy, fragment([4, 0], [0, 0], [0, 0], [1], terminated=[]))
    np.testing.assert_allclose(rows["value_targets"], [2, 0], rtol=1e-6)


@pytest.mark.parametrize(("reward", "expected"), [(5.0, 10.0), (-5.0, -10.0), (0.0, 0.0)])
def test_a_rare_reward_is_clipped(reward, expected):
    # Of 200 rewards one is not 0: the deviation is 5 · √(199 / 200²) = 0.353 with γ = 0, so that 5 would become 14.2.
    # Without any, the variance is 0.
    rewards = np.zeros(200)
    rewards[-1] = reward
    rows = postprocessed(policy_of(gamma=0.0), fragment(rewards, [0] * 200, [0] * 200, [199], terminated=[]))
    assert rows["rewards"][-1] == expected
    assert not rows["rewards"][:-1].any()


def run_of(name: str, **changes: Any) -> Any:
    config = {**settings(name), "normalize_rewards": True, "num_envs_per_worker": 2, **changes}
    return get_trainer_class(name)(config={"env": "CartPole-v1", **config})


def moments(trainer: Any) -> dict[str, np.ndarray]:
    filters = trainer.worker.get_filters()["default_policy"]
    return {name: value for name, value in filters.items() if name.startswith("~/returns/")}


@pytest.mark.long
@pytest.mark.parametrize("variant", long_except({"PPO", "PQN"}, VARIANTS))
def test_results_have_the_rewards_of_the_environment_and_a_restored_run_continues_exactly(variant, tmp_path):
    name, options = variant
    with run_of(name, **options) as trainer:
        result = trainer.train()
        while result["episode_reward_mean"] is None:
            result = trainer.train()
        assert result["episode_reward_mean"] == result["episode_len_mean"]  # each step has the reward 1
        assert moments(trainer)["~/returns/count"] >= result["timesteps_total"] - 40
        path = trainer.save(tmp_path / "checkpoint", exact=True)
        stored = moments(trainer)
        with run_of(name, **options) as restored:
            restored.restore(path)
            np.testing.assert_equal(moments(restored), stored)
            learned = [one.train()["info"]["learner"] for one in (trainer, restored)]
            assert learned[0] == learned[1]
            np.testing.assert_equal(moments(restored), moments(trainer))
    loaded: Any = load_policy(path)
    assert loaded.policy.running_statistics["returns"].count == stored["~/returns/count"]


@pytest.mark.long
def test_compiled_environments_have_the_same_statistic():
    with run_of("PPO", env="jax:CartPole-v1") as trainer:
        result = trainer.train()
        while result["episode_reward_mean"] is None:
            result = trainer.train()
        assert result["episode_reward_mean"] == result["episode_len_mean"]
        assert moments(trainer)["~/returns/count"] == result["timesteps_total"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["PPO", "A3C", "IMPALA"])
def test_the_driver_has_the_statistic_of_workers(name, small_ray):
    with run_of(name, num_workers=1) as trainer:
        for _ in range(2):
            result = trainer.train()
        assert moments(trainer)["~/returns/count"] >= result["timesteps_total"]
        policy: Any = trainer.get_policy()
        assert policy.running_statistics["returns"].variance > 0


def test_it_is_off_by_default():
    policy = policy_of(normalize_rewards=False)
    rows = postprocessed(policy, fragment([4, 2], [0, 0], [0, 0], [1], terminated=[]))
    np.testing.assert_array_equal(rows["rewards"], [4, 2])
    assert not policy.running_statistics
    assert "slot" not in policy.algorithm.samples
