"""Groups of two with tables as values, so that targets and gradients can be derived by hand."""

import numpy as np
from gymnasium import spaces

from rollax import SampleBatch
from tests.algorithms.tables import f32, set_tables

TWO = spaces.Tuple([spaces.Discrete(2)] * 2)
LINE = spaces.Tuple([spaces.Discrete(3)] * 2)
"""Two members, each in one of three states, observed as one-hot vectors: a linear model is a table of values."""
KERNEL = "network.policy_head.kernel"
SMALL = {"model": {"fcnet_hiddens": ()}, "agent_ids": False, "seed": 0, "train_batch_size": 2, "lr": 0.1, "gamma": 0.5}
TABLE = [[0.0, 0.5], [4.0, 1.0], [0.0, 0.0]]
TARGET_TABLE = [[9.0, 9.0], [2.0, 8.0], [7.0, 7.0]]


def with_table(policy, table, target_table=None):
    """Sets the values of the policy, and those of its target network, to tables [state, action]."""

    def weights(values):
        return {**policy.get_weights(), KERNEL: np.asarray(values, np.float32)}

    if target_table is None:
        policy.set_weights(weights(table))
        return policy
    set_tables(policy, weights(table), weights(target_table))
    return policy


def rows(**columns):
    """Two rows of the pair; the second one terminates."""
    return SampleBatch(
        {
            "obs": (np.array([0, 2]), np.array([1, 0])),
            "actions": (np.array([1, 0]), np.array([0, 0])),
            "rewards": f32(1, 2),
            "new_obs": (np.array([1, 0]), np.array([2, 0])),
            "discounts": f32(0.5, 0.0),
            "weights": f32(1, 0.5),
            **columns,
        }
    )
