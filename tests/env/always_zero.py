"""A policy without any computation."""

import numpy as np

from rollax import Policy


class AlwaysZero(Policy):
    """Acts without a network, so that nothing is compiled."""

    def compute_actions(self, obs_batch):
        return np.zeros(len(obs_batch), np.int64), [], {}
