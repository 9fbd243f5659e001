"""Runs that are saved and restored, and their numbers."""

import json

import numpy as np

from rollax import Trainer
from tests.algorithms.own_code import Lean
from tests.algorithms.results import numbers

CONFIG = {"num_envs_per_worker": 4, "train_batch_size": 64, "model": {"fcnet_hiddens": (8,)}, "seed": 5}
OF_PPO = {**CONFIG, "sgd_minibatch_size": 32, "num_sgd_iter": 2}
SCHEDULES = {"lr_schedule": [[0, 1e-2], [1000, 1e-3]], "entropy_coeff_schedule": [[0, 0.1], [1000, 0.0]]}
EVALUATION = {"evaluation_interval": 2, "evaluation_num_episodes": 2, "evaluation_config": {"explore": True}}
PPO = {**CONFIG, **SCHEDULES, **EVALUATION, "sgd_minibatch_size": 24, "num_sgd_iter": 2, "kl_coeff": 0.2}
PPO["observation_filter"] = "MeanStdFilter"
TWO = {"policies": {"left": None, "right": (Lean, None, None, {})}, "policy_mapping_fn": lambda agent: agent}


def continue_training(trainer, iterations):
    """Exact results and weights of the next iterations."""
    results = [numbers(trainer.train()) for _ in range(iterations)]
    weights = {
        policy_id: {name: [float(x).hex() for x in np.ravel(value)] for name, value in values.items()}
        for policy_id, values in trainer.worker.get_weights().items()
    }
    return json.loads(json.dumps([results, weights]))


def check_continues_exactly(trainer, folder, iterations=2, **changes):
    """A trainer of an exact save, opened with these changes, has the results and weights of the one that goes on."""
    path = trainer.save(folder, exact=True)
    expected = continue_training(trainer, iterations)
    with Trainer.from_checkpoint(path, **changes) as restored:
        assert continue_training(restored, iterations) == expected


def to_plain(state):
    """A nested state with lists in place of arrays, which can be compared."""
    if isinstance(state, dict):
        return {key: to_plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [to_plain(value) for value in state]
    return np.asarray(state).tolist() if hasattr(state, "__array__") else state
