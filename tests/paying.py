"""A small environment and a small network, for tests of whole runs in other processes."""

import os

import gymnasium as gym
import numpy as np

SMALL = {"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 2}
SMALL |= {"model": {"fcnet_hiddens": [4]}, "seed": 0}
EPISODE = 4


def paying_env():
    """An environment class that is pickled by value: its reward is `pay`; it fails once at step `fails_at`."""

    class Paying(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)

        def __init__(self, env_config):
            self.config, self.steps, self.total = env_config, 0, 0

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps, self.total = self.steps + 1, self.total + 1
            fails = self.config.get("fails_at") == self.total
            if fails and not os.path.exists(self.config["fixed"]):
                raise RuntimeError("the simulator is gone")
            pay = self.config.get("pay", 1.0)
            if callable(pay):
                pay = pay()
            return np.zeros(1, np.float32), pay, self.steps == EPISODE, False, {}

        def close(self):
            if "closed" in self.config:
                self.config["closed"](id(self))

    return Paying
