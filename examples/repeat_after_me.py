"""A memory task: repeat the symbol of two steps ago. An LSTM learns it; a policy without memory cannot."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollax import PPOTrainer


class RepeatAfterMe(gym.Env):
    """A random symbol per step: the reward is 1 if the action equals the symbol of `delay` steps ago, else -1.

    An episode has 101 steps, and the first `delay` of them earn nothing: at most 99, 0 by chance.
    """

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.delay = env_config.get("delay", 2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.shown: list[int] = []
        return self._show(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        steps, reward = len(self.shown), 0.0
        if steps > self.delay:
            reward = 1.0 if action == self.shown[-1 - self.delay] else -1.0
        return self._show(), reward, steps == 101, False, {}

    def _show(self) -> int:
        self.shown.append(int(self.np_random.integers(2)))
        return self.shown[-1]


CONFIG = {
    "num_envs_per_worker": 16,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 10,
    "lr_schedule": [[0, 3e-3], [40_000, 0.0]],
    "gamma": 0.5,  # rewards are immediate
    "model": {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 16, "fcnet_hiddens": []},
}


def main(iterations: int = 19) -> float:
    """Trains and returns the mean reward of 20 greedy episodes."""
    with PPOTrainer(env=RepeatAfterMe, config={**CONFIG, "seed": 0}) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean'] or 0:5.1f}")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.1f} of 99")
    assert reward >= 95
