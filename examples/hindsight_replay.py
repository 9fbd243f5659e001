"""Hindsight experience replay (Andrychowicz et al. (2017), arXiv:1707.01495): DQN flips bits until they equal a goal.

Episodes that miss their goal are also stored as if the state that they reached had been the goal. Without these rows
the agent almost never sees a reward, and DQN learns nothing. The method `postprocess_trajectory` of the policy adds
them; with SAC, TD3 or DDPG it is the same.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import DQN, DQNTrainer, JaxPolicy, SampleBatch

BITS = 8


class FlipBits(gym.Env):
    """Each action flips one bit. The bits of `desired_goal` earn 1 and end the episode; else it ends after 8 steps."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.action_space = gym.spaces.Discrete(BITS)
        self.observation_space = gym.spaces.Dict(
            {"achieved_goal": gym.spaces.MultiBinary(BITS), "desired_goal": gym.spaces.MultiBinary(BITS)}
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, BITS), dtype=np.int8)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        self.bits[action] ^= 1
        self.steps += 1
        reached = bool((self.bits == self.goal).all())
        return self._observation(), float(reached), reached, self.steps == BITS, {}

    def _observation(self) -> dict[str, np.ndarray]:
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}


class HindsightDQNPolicy(JaxPolicy):
    """Stores each trajectory twice: as it was, and with its last state as the goal."""

    def postprocess_trajectory(self, sample_batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
        states = sample_batch.following("obs")["achieved_goal"]  # [T, BITS] after each step
        reached = (states == states[-1]).all(axis=1)
        steps = int(reached.argmax()) + 1  # until it was in its last state for the first time
        hindsight = copy.deepcopy(sample_batch[:steps])
        for obs in (hindsight["obs"], hindsight.after["obs"]):
            obs["desired_goal"] = np.broadcast_to(states[-1], obs["desired_goal"].shape)
        hindsight["rewards"] = reached[:steps].astype(np.float64)
        hindsight["terminateds"], hindsight["truncateds"] = reached[:steps], np.zeros(steps, bool)
        postprocess = super().postprocess_trajectory
        return SampleBatch.concat_samples([postprocess(sample_batch), postprocess(hindsight)])


class HindsightDQN(DQN):
    policy_class = HindsightDQNPolicy


class HindsightDQNTrainer(DQNTrainer):
    policy_class = HindsightDQN


CONFIG = {
    "num_envs_per_worker": 16,
    "batch_mode": "complete_episodes",  # the last state of a trajectory is that of its episode
    "rollout_fragment_length": BITS,
    "timesteps_per_iteration": 1000,
    "learning_starts": 1000,
    "train_batch_size": 256,
    "training_intensity": 1 / 8,
    "target_network_update_freq": 25,
    "lr": 2e-3,
    "gamma": 0.95,
    "epsilon_timesteps": 8000,
    "seed": 0,
}


def main(iterations: int = 25) -> float:
    """Trains and returns the fraction of 200 greedy episodes that reach their goal; without hindsight about 0.01."""
    with HindsightDQNTrainer(env=FlipBits, config=CONFIG) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  goals reached {result['episode_reward_mean']:.2f}")
        return trainer.evaluate(num_episodes=200)["episode_reward_mean"]


if __name__ == "__main__":
    reached = main()
    print(f"goals reached greedily: {reached:.2f}")
    assert reached >= 0.85
