"""Several agents and policies, from the environment to train batches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollax import MultiAgentEnv, PolicySpec, PPOTrainer, RolloutWorker
from rollax.algorithms.ppo import PPO
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, Encode, Scripted, scripted

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
    def test_the_mapping_is_called_once_per_agent_and_episode(self):
        """In four copies, with a random mapping: an agent that returns keeps its policy."""
        asked: list[tuple] = []
        rng = np.random.default_rng(0)

        def mapping(agent_id, episode):
            asked.append((episode.episode_id, agent_id))
            return "xy"[rng.integers(2)]

        config = {"num_envs_per_worker": 4, "rollout_fragment_length": 12}
        specs = {"x": Encode, "y": Encode}
        worker = RolloutWorker(scripted(SCRIPT), specs, policy_mapping_fn=mapping, config=config)
        acted: dict[tuple, set] = {}
        for _ in range(4):
            for policy_id, batch in worker.sample().items():
                for key in zip(batch["eps_id"].tolist(), batch["agent_id"].tolist(), strict=True):
                    acted.setdefault(key, set()).add(policy_id)
        assert len(asked) == len(set(asked))
        assert set(acted) <= set(asked)
        assert {len(policies) for policies in acted.values()} == {1}
        assert set().union(*acted.values()) == {"x", "y"}

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
        for env in envs:
            for episode in episodes(env):
                for agent, rewards in episode.items():
                    trajectories["y" if agent == "b" else "x"] += rewards
        assert result["policy_reward_mean"] == pytest.approx(
            {name: np.mean(sums) for name, sums in trajectories.items()}
        )


def episodes(env: Scripted) -> list[dict[str, list[float]]]:
    """For each finished episode: agent -> return of each of its trajectories."""
    finished, running = [], {}
    for kind, *event in env.log:
        if kind == "reset":
            running, alive = {agent: [0.0] for agent in event[0]}, set(event[0])
            continue
        _, obs, rewards, terms, truncs = event
        for agent, reward in rewards.items():
            running[agent][-1] += reward
        ended = {agent for agent in alive if terms.get(agent) or truncs.get(agent)}
        for agent in obs.keys() - alive:
            running.setdefault(agent, []).append(0.0)
        alive = (alive | obs.keys()) - ended
        if terms[ALL] or truncs[ALL]:
            finished.append(running)
    return finished


class TestTrajectories:
    def test_trajectories_are_complete_with_late_rewards(self):
        """Expected steps and rewards are those of the script."""
        config = {"rollout_fragment_length": 6, "batch_mode": "complete_episodes"}
        worker = RolloutWorker(scripted(SCRIPT), Encode, config=config)
        batch = worker.sampler.sample()[0]["default_policy"]
        (env,) = worker.env.get_sub_environments()
        found = []
        for start, end in zip(batch.starts, batch.ends, strict=True):
            rows = slice(start, end + 1)
            agent = batch["agent_id"][start]
            assert set(batch["agent_id"][rows]) == {agent}
            flags = bool(batch["terminateds"][end]), bool(batch["truncateds"][end])
            found.append((agent, batch["t"][rows].tolist(), batch["rewards"][rows].tolist(), flags))

        def reward(agent, *steps):
            return sum(env.log[step][3].get(agent, 0.0) for step in steps)

        assert sorted(found) == sorted(
            [
                ("a", [0, 1, 5], [reward("a", 1), reward("a", 3), reward("a", 6)], (True, False)),
                ("b", [0], [0.0], (True, False)),
                ("b", [2, 3], [0.0, reward("b", 4, 5)], (False, True)),
                ("c", [1, 3, 4, 5], [reward("c", 2), 0.0, 0.0, reward("c", 6)], (True, False)),
            ]
        )
        (metrics,) = worker.get_metrics()
        assert metrics.reward == sum(sum(event[3].values()) for event in env.log if event[0] == "step")
