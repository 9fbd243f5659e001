"""Several agents and policies, from the environment to train batches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollax import MultiAgentEnv, PolicySpec, PPOTrainer, RolloutWorker
from rollax.algorithms.ppo import PPO
from tests.rollout.reference import histories
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, Encode, scripted

# Agents join late (c), leave early (b), return (b), take turns (a waits), are rewarded after the last action (b).
SCRIPT = [
    {"a": "o", "b": "o"},
    {"a": "or", "b": "T", "c": "o"},
    {"b": "o", "c": "r"},
    {"a": "r", "b": "o", "c": "o"},
    {"b": "r", "c": "o"},
    {"a": "o", "b": "rC", "c": "o"},
    {"a": "r", "c": "or", ALL: "T"},
]


class Once(MultiAgentEnv):
    """Three steps of two agents with the rewards 1, 2 and 3, of which the last comes after the last action."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self._obs(), {}

    def step(self, actions):
        self.count += 1
        over = self.count == 4
        obs = {} if self.count >= 3 else self._obs()
        if self.count == 3:
            obs["other"] = np.full(4, 9, np.float32)  # some agent must act while a and b wait for their rewards
            return obs, {}, {ALL: False}, {ALL: False}, {}
        rewards = dict.fromkeys("ab", float(min(self.count, 3)))
        return obs, rewards, {ALL: over}, {ALL: False}, {}

    def _obs(self):
        return {agent: np.full(4, self.count, np.float32) for agent in "ab"}


class TestPolicies:
    def test_one_call_per_policy_and_poll(self):
        calls: list[tuple[str, int]] = []

        class Counting(Encode):
            def compute_actions(self, obs_batch):  # type: ignore[override]
                calls.append((self.name, len(obs_batch)))
                return super().compute_actions(obs_batch)

        together = [dict.fromkeys("abc", "o"), *[dict.fromkeys("abc", "or")] * 20, {ALL: "T"}]
        config = {"num_envs_per_worker": 5, "rollout_fragment_length": 10}
        worker = RolloutWorker(
            scripted(together),
            {"x": Counting, "y": Counting},
            policy_mapping_fn=lambda agent: "x" if agent == "a" else "y",
            config=config,
        )
        worker.sample()
        assert Counter(calls) == {("x", 5): 10, ("y", 10): 10}

    def test_an_override_of_gamma_changes_the_returns(self):
        """With λ = 1 and a terminal end the value targets are the returns: 1, 2, 3 with γ = 0.1 are 1.23, 2.3, 3."""
        specs = {
            "far": PolicySpec(PPO, config={"gamma": 0.1, "lambda": 1.0}),
            "near": PolicySpec(PPO, config={"gamma": 0.0, "lambda": 1.0}),
            "rest": Encode,
        }
        config = {"rollout_fragment_length": 4, "batch_mode": "complete_episodes"}
        batch = RolloutWorker(
            lambda _: Once(),
            specs,
            policy_mapping_fn=lambda agent: {"a": "far", "b": "near"}.get(agent, "rest"),
            config=config,
        ).sample()
        np.testing.assert_allclose(batch["far"]["value_targets"], [1.23, 2.3, 3.0], rtol=1e-5)
        np.testing.assert_allclose(batch["near"]["value_targets"], [1.0, 2.0, 3.0], rtol=1e-5)

    @pytest.mark.long
    def test_policies_to_train_and_rewards_by_policy(self):
        multiagent = {
            "policies": {"x": None, "y": None},
            "policy_mapping_fn": lambda agent: "y" if agent == "b" else "x",
            "policies_to_train": ["y"],
        }
        config = {
            "multiagent": multiagent,
            "num_envs_per_worker": 2,
            "train_batch_size": 24,
            "sgd_minibatch_size": 12,
            "num_sgd_iter": 1,
            "model": {"fcnet_hiddens": [8]},
            "lr": 0.1,
            "seed": 0,
        }
        with PPOTrainer(env=scripted(SCRIPT), config=config) as trainer:
            before = trainer.worker.get_weights()
            result = trainer.train()
            after = trainer.worker.get_weights()
            envs = trainer.worker.env.get_sub_environments()
        assert set(result["info"]["learner"]) == {"y"}
        for name, values in before["x"].items():
            np.testing.assert_array_equal(after["x"][name], values)
        assert any(not np.array_equal(after["y"][name], values) for name, values in before["y"].items())
        # From the logs of the finished episodes: b has two trajectories in each, and x acts for a and for c.
        trajectories: dict[str, list[float]] = {"x": [], "y": []}
        for history in histories(envs):
            for _, _, by_agent in history.episodes:
                for agent, rewards in by_agent.items():
                    trajectories["y" if agent == "b" else "x"] += rewards
        assert result["policy_reward_mean"] == pytest.approx(
            {name: np.mean(sums) for name, sums in trajectories.items()}
        )
