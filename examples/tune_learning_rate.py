"""A study with Optuna finds a step size for PPO on CartPole-v1: eight short trials improve on a step size of 1e-6."""

from __future__ import annotations

from typing import Any

from rollax import PPOTrainer
from rollax.tune import run_study

CONFIG = {
    "num_envs_per_worker": 8,
    "train_batch_size": 512,
    "num_sgd_iter": 10,
    "gamma": 0.98,
    "lambda": 0.8,
    "lr": 1e-6,  # far too small
}


def greedy_reward(config: dict[str, Any], iterations: int) -> float:
    """Trains with a seed that the study has not used, and returns the mean reward of 20 greedy episodes."""
    with PPOTrainer("CartPole-v1", {**config, "seed": 0}) as trainer:
        trainer.fit({"training_iteration": iterations}, evaluate=False, progress="none", diagnose=False)
        return trainer.evaluate(20)["episode_reward_mean"]


def main(iterations: int = 20) -> float:
    """Searches and returns how much higher the greedy reward is with the best settings, with a fresh seed."""
    study = run_study(
        "PPO",
        "CartPole-v1",
        CONFIG,
        stop={"training_iteration": iterations},
        search={"lr": {"log": [1e-6, 1e-1]}},
        trials=8,
        evaluations=3,
    )
    print(f"best of the trials: {study.best.score:.0f} with lr {study.best.values['lr']:.1e}")
    before, after = greedy_reward(CONFIG, iterations), greedy_reward(study.best_config, iterations)
    print(f"with a fresh seed: {after:.0f}, and with lr {CONFIG['lr']:.0e} {before:.0f}")
    return after - before


if __name__ == "__main__":
    improvement = main()
    print(f"improvement of the greedy reward: {improvement:.0f}")
    assert improvement >= 100
