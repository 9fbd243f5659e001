"""A policy in plain NumPy, without gradients: random search over four weights balances CartPole-v1 for 500 steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax import Policy, RolloutWorker


class LinearPolicy(Policy):
    """Pushes right if w · observation > 0, else left."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.w = [0.0] * observation_space.shape[0]

    def compute_actions(self, obs_batch: np.ndarray) -> tuple[list[int], list, dict]:  # type: ignore[override]
        return [int(score > 0) for score in obs_batch @ np.array(self.w)], [], {}

    def get_weights(self) -> dict[str, Any]:
        return {"w": list(self.w)}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        self.w = list(weights["w"])


def main(iterations: int = 200) -> float:
    """Tries random weights and returns the best mean reward of 8 episodes."""
    rng = np.random.default_rng(0)
    worker = RolloutWorker("CartPole-v1", LinearPolicy, config={"num_envs_per_worker": 8, "seed": 0})
    best = 0.0
    for number in range(1, iterations + 1):
        weights = rng.normal(size=4)
        worker.set_weights({"default_policy": {"w": weights.tolist()}})
        reward = float(np.mean([episode.reward for episode in worker.evaluate(8)]))
        if reward > best:
            best = reward
            print(f"try {number:3}  mean reward {best:6.1f}  weights {np.round(weights, 2)}")
        if best == 500:
            break
    worker.stop()
    return best


if __name__ == "__main__":
    reward = main()
    print(f"best mean reward: {reward:.1f}")
    assert reward == 500
