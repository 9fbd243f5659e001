"""Evaluation with policies other than those of training."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import MultiAgentEnv, PPOTrainer
from rollax.policy.policy import Policy


class Pair(MultiAgentEnv):
    """Two agents and one step; the reward of each is its action."""

    possible_agents = ("left", "right")
    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        return self.seen(), {}

    def step(self, actions):
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self.seen(), rewards, {"__all__": True}, {"__all__": False}, {}

    def seen(self):
        return dict.fromkeys(self.possible_agents, np.zeros(1, np.float32))


class Fours(Policy):
    def compute_actions(self, obs_batch):
        return np.full(len(obs_batch), 4), [], {}


@pytest.mark.long
def test_an_opponent_may_replace_a_trained_policy():
    small = (None, Pair.observation_space, Pair.action_space, {})
    fixed = (Fours, Pair.observation_space, Pair.action_space, {})
    config = {
        "train_batch_size": 8,
        "sgd_minibatch_size": 8,
        "multiagent": {"policies": {"left": small, "right": small}, "policy_mapping_fn": lambda agent: agent},
        "evaluation_config": {
            "multiagent": {
                "policies": {"left": small, "fours": fixed},
                "policy_mapping_fn": lambda agent: "left" if agent == "left" else "fours",
            }
        },
    }
    with PPOTrainer(Pair, config) as trainer:
        trainer.train()
        rewards = trainer.evaluate(3)["policy_reward_mean"]
    assert set(rewards) == {"left", "fours"}
    assert rewards["fours"] == 4.0
