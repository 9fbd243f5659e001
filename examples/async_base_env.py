"""A custom `BaseEnv`: lifts whose trips take different times, so that each poll returns different lifts."""

from __future__ import annotations

import heapq
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import BaseEnv, PPOTrainer

FLOORS = 6
TRIPS = 20


class Lifts(BaseEnv):
    """Houses with one lift each. A lift at rest observes its floor and the floor of a passenger, and picks a floor.

    A trip takes one second plus one for each floor on the way. It earns 1 if it ends at the passenger's floor; then the
    next passenger waits on another floor. A poll returns the lifts that arrive next.
    """

    observation_space = gym.spaces.MultiDiscrete([FLOORS, FLOORS])
    action_space = gym.spaces.Discrete(FLOORS)

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.num_envs = env_config["houses"]
        self.random = np.random.default_rng(env_config.get("seed", 0))
        self.floor, self.waiting, self.trips = (np.zeros(self.num_envs, np.int64) for _ in range(3))
        self.now = 0
        self.stops: list[tuple[int, int]] = []  # a heap of (when, house): trips under way

    def try_reset(self, env_id: int | None = None) -> tuple[dict, dict]:
        houses = range(self.num_envs) if env_id is None else [env_id]
        self.stops = [stop for stop in self.stops if stop[1] not in houses]
        for house in houses:
            self.trips[house] = 0
            self.floor[house], self.waiting[house] = self.random.integers(FLOORS, size=2)
        return {house: self._seen(house) for house in houses}, {house: {"lift": {}} for house in houses}

    def send_actions(self, actions: dict) -> None:
        for house, by_agent in actions.items():
            target = int(by_agent["lift"])
            duration = 1 + abs(target - int(self.floor[house]))
            self.floor[house] = target
            heapq.heappush(self.stops, (self.now + duration, house))

    def poll(self) -> tuple[dict, dict, dict, dict, dict, dict]:
        self.now = self.stops[0][0]
        obs, rewards, terminateds, truncateds, infos = {}, {}, {}, {}, {}
        while self.stops and self.stops[0][0] == self.now:
            _, house = heapq.heappop(self.stops)
            self.trips[house] += 1
            rewards[house] = {"lift": float(self.floor[house] == self.waiting[house])}
            if rewards[house]["lift"]:
                self.floor[house], self.waiting[house] = self.random.integers(FLOORS, size=2)
            obs[house], infos[house] = self._seen(house), {"lift": {"second": self.now}}
            terminateds[house] = {"__all__": False}
            truncateds[house] = {"__all__": bool(self.trips[house] == TRIPS)}
        return obs, rewards, terminateds, truncateds, infos, {}

    def _seen(self, house: int) -> dict[str, np.ndarray]:
        return {"lift": np.array([self.floor[house], self.waiting[house]])}


def main(iterations: int = 14) -> float:
    """Trains and returns the mean reward of 20 greedy episodes: at most 20, 3.3 by chance."""
    config = {
        "env_config": {"houses": 16},
        "train_batch_size": 2000,
        "sgd_minibatch_size": 250,
        "lr": 3e-3,
        "gamma": 0.5,  # a trip has little effect on later trips
        "entropy_coeff": 0.01,
        "seed": 0,
    }
    with PPOTrainer(env=Lifts, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:7,} trips  mean reward {result['episode_reward_mean'] or 0:.1f}")
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.1f} of {TRIPS}")
    assert reward >= 18
