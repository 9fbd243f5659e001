"""Short runs of DQN on recorded data."""

import gymnasium as gym
import numpy as np

from tests.offline.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory

SMALL = {"model": {"fcnet_hiddens": (4,)}, "timesteps_per_iteration": 0, "seed": 0}
TINY = {**SMALL, "dueling": False, "train_batch_size": 4, "updates_per_step": 5}


class Line(gym.Env):
    """Has the spaces of the recorded data; counts resets and steps."""

    observation_space, action_space = OBSERVATIONS, ACTIONS
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        Line.resets += 1
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Line.steps += 1
        self._t += 1
        return np.full(2, self._t, np.float32), 1.0, self._t == 4, False, {}


def reader(count=6, steps=5):
    """A reader of so many trajectories of so many steps."""
    return ListReader([trajectory(number, steps) for number in range(count)])


def weights_of(trainer):
    return trainer.get_weights()["default_policy"]


def same_weights(one, other):
    return all(np.array_equal(value, weights_of(other)[name]) for name, value in weights_of(one).items())
