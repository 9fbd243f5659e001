"""QMIX, VDN and independent Q-learning on a game whose values are not a sum of the agents' values.

The two-step game: the first action of the first agent leads to a state in which both earn 7 with any actions, or to a
state in which they earn 8 if both dare, 1 if one dares and 0 if none does. All training actions are random. The best
fit of a sum of two values to the second state is 6.5 where both dare, so VDN chooses the first state; QMIX represents
the 8.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollax import EnvContext, MultiAgentEnv, QMIXTrainer

AGENTS = ("first", "second")
STATES, ACTIONS = 3, 2
BOTH_DARE = [[0.0, 1.0], [1.0, 8.0]]


class TwoStepGame(MultiAgentEnv):
    """Both agents observe the state: 0 at first, then 1 (safe) or 2 (daring)."""

    observation_space = gym.spaces.Discrete(STATES)
    action_space = gym.spaces.Discrete(ACTIONS)
    possible_agents = AGENTS

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.state = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.state = 0
        return dict.fromkeys(AGENTS, 0), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        over, earned = self.state > 0, 0.0
        if self.state == 0:
            self.state = 1 + int(actions["first"])
        else:
            earned = 7.0 if self.state == 1 else BOTH_DARE[actions["first"]][actions["second"]]
        rewards = dict.fromkeys(AGENTS, earned / 2)
        return dict.fromkeys(AGENTS, self.state), rewards, {"__all__": over}, {"__all__": False}, {}


def make_env(context: EnvContext) -> MultiAgentEnv:
    """Returns the game with both agents in one group, whose spaces are Tuples and whose reward is the sum."""
    return TwoStepGame(context).with_agent_groups({"pair": list(AGENTS)})


def train(mixer: str | None, iterations: int) -> float:
    """Trains and returns the sum of both agents' rewards in a greedy episode."""
    config = {
        "mixer": mixer,
        "num_envs_per_worker": 8,
        "rollout_fragment_length": 8,
        "initial_epsilon": 1.0,
        "final_epsilon": 1.0,
        "learning_starts": 256,
        "training_intensity": 0.25,
        "train_batch_size": 64,
        "target_network_update_freq": 50,
        "timesteps_per_iteration": 500,
        "lr": 2e-3,
        "model": {"fcnet_hiddens": [32], "fcnet_activation": "relu"},
        "seed": 0,
    }
    with QMIXTrainer(env=make_env, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
        reward = trainer.evaluate(num_episodes=1)["episode_reward_mean"]
    print(f"{mixer or 'independent'}: {reward:.0f} after {result['timesteps_total']:,} steps")
    return reward


def main(iterations: int = 16) -> float:
    """Trains with each mixer and returns the reward of QMIX minus that of VDN: 8 - 7."""
    train(None, iterations)
    without = train("vdn", iterations)
    return train("qmix", iterations) - without


if __name__ == "__main__":
    assert main() == 1.0
