"""Compares two policies with the log of a third one, before either serves a customer.

A shop shows five articles to each customer, with a reward of 1 for each purchase. Two months with random articles are
logged. Two policies learn from the first month: a cautious one, and a bold one that departs further from the log. The
second month is used to evaluate both, without running them. The episodes are short, so that importance sampling is
reliable. At the end both policies serve customers, to check the estimates.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

from rollax import MARWILTrainer, PGTrainer, estimate_policy, load_policy

STEPS, CUSTOMERS = 5, 3000
TASTES = np.array([[0.8, 0.4, 0.1, 0.1], [0.1, 0.7, 0.5, 0.1], [0.2, 0.1, 0.3, 0.9]])
"""The probability that a customer of each kind buys each article the first time it is shown."""


class Shop(gym.Env):
    """Shows five articles to a customer; an article that was already shown is bought half as often.

    An observation has the customer's kind, how often each article was shown, and the elapsed share of the visit.
    """

    def __init__(self) -> None:
        kinds, articles = TASTES.shape
        self.observation_space = gym.spaces.Box(0, 1, (kinds + articles + 1,), np.float32)
        self.action_space = gym.spaces.Discrete(articles)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kind = int(self.np_random.integers(len(TASTES)))
        self.shown = np.zeros(TASTES.shape[1], int)
        return self.observed(), {}

    def step(self, action):
        buys = self.np_random.random() < TASTES[self.kind, action] * 0.5 ** self.shown[action]
        self.shown[action] += 1
        return self.observed(), float(buys), bool(self.shown.sum() == STEPS), False, {}

    def observed(self) -> np.ndarray:
        kind = np.arange(len(TASTES)) == self.kind
        return np.concatenate([kind, self.shown / STEPS, [self.shown.sum() / STEPS]]).astype(np.float32)


def log_two_months(folder: Path) -> None:
    """Logs two months of an untrained policy, which shows random articles."""
    with PGTrainer(Shop, {"num_envs_per_worker": 50, "seed": 0}) as trainer:
        trainer.record(CUSTOMERS, folder / "january")
    with PGTrainer(Shop, {"num_envs_per_worker": 50, "seed": 1}) as trainer:
        trainer.record(CUSTOMERS, folder / "february")


def learned(name: str, beta: float, folder: Path, iterations: int) -> MARWILTrainer:
    """Learns from January; with a large `beta` the policy departs further from the log."""
    config = {
        "input": str(folder / "january"),
        "beta": beta,
        "moving_average_sqd_adv_norm_start": 1.0,
        "gamma": 1.0,
        "lr": 3e-3,
        "train_batch_size": 500,
        "model": {"fcnet_hiddens": [32]},
        "num_envs_per_worker": 50,
        "evaluation_config": {"explore": True},
        "seed": 0,
    }
    trainer = MARWILTrainer(Shop, config)
    for _ in range(iterations):
        trainer.train()
    trainer.save(folder / name)
    return trainer


def main(iterations: int = 5) -> float:
    """Compares the two; returns the largest error of an estimate, as a share of the actual reward."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log_two_months(folder)
        expected, earned = {}, {}
        for name, beta in (("cautious", 0.5), ("bold", 2.0)):
            with learned(name, beta, folder, iterations) as trainer:
                policy = load_policy(next((folder / name).iterdir()))
                found = estimate_policy(policy, folder / "february", ["wpdis"])
                expected[name] = found["wpdis"]
                earned[name] = trainer.evaluate(CUSTOMERS)["episode_reward_mean"]
            print(
                f"{name:8}  February {found.v_behavior:.2f}  expected {expected[name].v_target:.2f} "
                f"({expected[name].low:.2f} to {expected[name].high:.2f}), as if from "
                f"{found.effective_sample_size:.0f} of {found.episodes} customers  earned {earned[name]:.2f}"
            )
    chosen = max(expected, key=lambda name: expected[name].v_target)
    print(f"the log speaks for the {chosen} policy; the {max(earned, key=earned.__getitem__)} one earns more")
    return max(abs(expected[name].v_target - earned[name]) / earned[name] for name in earned)


if __name__ == "__main__":
    error = main()
    print(f"the estimates are within {error:.0%} of what the policies earn")
    assert error < 0.1
