"""A controller is learned from a factory's CSV log, and is better than the logged controller.

An oven heats batches of 40 minutes. The log has one row a minute: the temperatures, the target, the power that the old
controller chose, and the minute's profit. The old controller is slow, and operators correct it randomly. TD3BC learns
only from the file; the simulated oven is used to write the log and to evaluate the result.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

from rollax import TD3BCTrainer

BATCHES, MINUTES = 250, 40
OBSERVED, COLUMNS = ["air", "wall", "target"], ["batch", "air", "wall", "target", "power", "profit"]


class Oven(gym.Env):
    """Heating elements warm the wall, which warms the air; the profit falls with the distance from the target.

    Temperatures are in hundreds of degrees. The power is between 0 and 1.
    """

    observation_space = gym.spaces.Box(0, 10, (3,), np.float32)
    action_space = gym.spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.air, self.wall = self.np_random.uniform(0.2, 1.0, 2)
        self.target, self.minute = self.np_random.uniform(1.5, 3.0), 0
        return self.observed(), {}

    def step(self, action):
        power = float(action[0])
        self.wall += 0.6 * power - 0.2 * (self.wall - self.air) - 0.05 * self.wall
        self.air += 0.3 * (self.wall - self.air) + self.np_random.normal(0, 0.01)
        self.minute += 1
        profit = -abs(self.air - self.target) - 0.1 * power
        return self.observed(), profit, False, self.minute == MINUTES, {}

    def observed(self) -> np.ndarray:
        return np.array([max(self.air, 0), max(self.wall, 0), self.target], np.float32)


def write_log(path: Path) -> float:
    """Runs the old controller and writes the log; returns its mean profit of a batch.

    The last row of a batch has the final temperatures, without power and profit.
    """
    oven, random, total = Oven(), np.random.default_rng(0), 0.0
    with path.open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(COLUMNS)
        for batch in range(BATCHES):
            obs, over = oven.reset(seed=batch)[0], False
            while not over:
                air, _, target = obs.tolist()
                power = float(np.clip(0.3 + 0.3 * (target - air) + random.normal(0, 0.25), 0, 1))
                row = [batch, *obs.tolist(), power]
                obs, profit, _, over, _ = oven.step([power])
                log.writerow([*row, profit])
                total += profit
            log.writerow([batch, *obs.tolist(), "", ""])
    return total / BATCHES


def main(iterations: int = 12) -> float:
    """Learns from the log; returns the relative reduction of a batch's loss."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "oven.csv"
        before = write_log(path)
        print(f"old controller: profit {before:.1f} of a batch")
        names = {"obs": OBSERVED, "actions": ["power"], "rewards": "profit", "episode": "batch", "ends": "truncated"}
        config = {
            "input": str(path),
            "input_config": {"format": "csv", **names},
            "updates_per_step": 500,
            "gamma": 0.95,
            "lr": 1e-3,
            "train_batch_size": 128,
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
            "num_envs_per_worker": 10,
            "seed": 0,
        }
        with TD3BCTrainer(Oven, config) as trainer:
            for iteration in range(1, iterations + 1):
                result = trainer.train()
                if iteration % 4 == 0:
                    profit = trainer.evaluate(10)["episode_reward_mean"]
                    print(f"{result['info']['data']['epochs']:5.1f} epochs  profit {profit:.1f} of a batch")
            after = trainer.evaluate(50)["episode_reward_mean"]
    print(f"new controller: profit {after:.1f} of a batch")
    return (after - before) / -before


if __name__ == "__main__":
    gain = main()
    print(f"a batch loses {gain:.0%} less")
    assert gain > 0.3
