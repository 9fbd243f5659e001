"""Checks an environment, records selected episodes during training, and records greedy episodes at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rollax import PPOTrainer, check_env, record_env


def main(iterations: int = 12, folder: str | None = None) -> float:
    """Returns the mean length of three recorded greedy episodes of CartPole: at most 500."""
    videos = Path(folder or tempfile.mkdtemp(prefix="videos-"))
    print(check_env("CartPole-v1"))
    # Every fiftieth episode of the first sub-environment.
    recorded = record_env("CartPole-v1", videos / "training", episodes=lambda episode: episode % 50 == 0)
    config = {
        "num_envs_per_worker": 8,
        "train_batch_size": 2048,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 10,
        "lr": 2e-3,
        "seed": 0,
    }
    with PPOTrainer(env=recorded, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            print(f"{result['timesteps_total']:6,} steps  mean length {result['episode_len_mean']:.0f}")
        greedy = trainer.evaluate(3, record_dir=videos / "greedy")
    films = sorted(videos.rglob("*.mp4"))
    assert len(greedy["videos"]) == 3
    print(*films, sep="\n")
    return greedy["episode_len_mean"]


if __name__ == "__main__":
    length = main()
    print(f"greedy mean length {length:.0f}")
    assert length >= 150
