"""Short runs of ARS and ES, and what they have found."""

from functools import partial

import numpy as np

from rollax.search.compiled_candidates import play_candidates
from rollax.search.messages import Candidates
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


def request(count=3, **settings):
    """The task of a worker that plays so many directions."""
    candidates = Candidates(seed=5, generation=2, indices=np.arange(count), noise_stdev=0.1, **settings)
    return partial(play_candidates, candidates)


def assert_same_candidates(found, expected):
    """Two results of such a task are equal, bit for bit."""
    np.testing.assert_array_equal(found.returns, expected.returns)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    assert [(e.reward, e.length) for e in found.episodes] == [(e.reward, e.length) for e in expected.episodes]
    for state, other in zip(found.filters, expected.filters, strict=True):
        assert {name: array.tobytes() for name, array in state.items()} == {
            name: array.tobytes() for name, array in other.items()
        }
