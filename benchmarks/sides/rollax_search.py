"""rollax's ARS in one process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.protocol import Link, run, versions
from rollax import ARSTrainer


def iterations(link: Link, env: str, num_envs: int, directions: int, warm_up: int, hiddens: Sequence[int] = ()) -> None:
    """Whole iterations, after some (`warm_up`) that make the episodes long."""
    config = {
        "num_directions": directions,
        "num_envs_per_worker": num_envs,
        "model": {"fcnet_hiddens": hiddens},
        "seed": 0,
    }
    trainer = ARSTrainer(env=env, config=config)
    for _ in range(warm_up):
        trainer.train()
    link.serve_rates(
        lambda: trainer.train()["timesteps_this_iter"],
        versions=versions("rollax", "jax", "gymnasium", "mujoco", "numpy"),
    )


def curve(
    link: Link, env: str, settings: Mapping[str, Any], budget: int, evaluations: int, episodes: int, seed: int
) -> None:
    """Greedy evaluations of so many episodes at equal intervals during the search, as a list of (steps, score)."""
    config = {
        **settings,
        "num_envs_per_worker": 2 * settings["num_directions"],
        "evaluation_num_episodes": episodes,
        "seed": seed,
    }
    points = []
    with ARSTrainer(env, config) as trainer:
        for number in range(1, evaluations + 1):
            steps = 0
            while steps < budget * number // evaluations:
                steps = trainer.train()["timesteps_total"]
            points.append((steps, trainer.evaluate()["episode_reward_mean"]))
            print(f"{env} seed {seed}: {points[-1]}", file=sys.stderr, flush=True)
    link.send(answer=points)


if __name__ == "__main__":
    run(iterations, curve)
