"""Several agents and policies, from the environment to train batches."""

from collections import Counter

import numpy as np

from rollax import PolicySpec, RolloutWorker
from rollax.algorithms.ppo import PPO
from tests.env.always_zero import AlwaysZero
from tests.env.worlds import FixedSteps
from tests.rollout.worlds import ALL, Encode, a_by_x, scripted


class TestPolicies:
    def test_one_call_per_policy_and_poll(self):
        calls: list[tuple[str, int]] = []

        class Counting(Encode):
            def compute_actions(self, obs_batch):  # type: ignore[override]
                calls.append((self.name, len(obs_batch)))
                return super().compute_actions(obs_batch)

        together = [dict.fromkeys("abc", "o"), *[dict.fromkeys("abc", "or")] * 20, {ALL: "T"}]
        config = {"num_envs_per_worker": 5, "rollout_fragment_length": 10}
        policies = {"x": Counting, "y": Counting}
        RolloutWorker(scripted(together), policies, policy_mapping_fn=a_by_x, config=config).sample()
        assert Counter(calls) == {("x", 5): 10, ("y", 10): 10}

    def test_an_override_of_gamma_changes_the_returns(self):
        """With λ = 1 and a terminal end the value targets are the returns: 1, 2, 3 with γ = 0.1 are 1.23, 2.3, 3."""
        obs, no = dict.fromkeys("ab", np.zeros(3, np.float32)), {ALL: False}
        # Some agent must act while a and b wait for their last rewards, which come after their last actions.
        waits = ({"other": np.zeros(3, np.float32)}, {}, no, no, {})
        steps = [(obs, dict.fromkeys("ab", reward), no, no, {}) for reward in (1.0, 2.0)]
        env = FixedSteps(*steps, waits, ({}, dict.fromkeys("ab", 3.0), {ALL: True}, no, {}), first=(obs, {}))
        returns = {agent: {"gamma": gamma, "lambda": 1.0} for agent, gamma in (("a", 0.1), ("b", 0.0))}
        policies = {agent: PolicySpec(PPO, config=config) for agent, config in returns.items()}
        config = {"rollout_fragment_length": 4, "batch_mode": "complete_episodes"}
        mapping = {"policy_mapping_fn": lambda agent: agent, "config": config}
        batch = RolloutWorker(lambda _: env, {**policies, "other": AlwaysZero}, **mapping).sample()
        np.testing.assert_allclose(batch["a"]["value_targets"], [1.23, 2.3, 3.0], rtol=1e-5)
        np.testing.assert_allclose(batch["b"]["value_targets"], [1.0, 2.0, 3.0], rtol=1e-5)
