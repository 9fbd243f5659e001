"""Short runs of ARS and ES, and what they have found."""

from __future__ import annotations

import numpy as np

from tests.search.search_worlds import Drift

SMALL = {"num_directions": 5, "num_envs_per_worker": 4, "seed": 0}


def after(trainer_class, iterations=3, env=Drift, **config):
    """Results, weights and filters after a few iterations."""
    with trainer_class(env, {**SMALL, **config}) as trainer:
        return state_after(trainer, iterations)


def state_after(trainer, iterations):
    results = [trainer.train() for _ in range(iterations)]
    summary = [(r["episode_reward_mean"], r["timesteps_total"], r["info"]["learner"]) for r in results]
    return summary, trainer.get_weights(), trainer.worker.get_filters()


def assert_same(found, expected):
    np.testing.assert_equal(found, expected)
