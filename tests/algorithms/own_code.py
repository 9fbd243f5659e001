"""Code of a user's own that a checkpoint names: a policy in plain NumPy, and a model."""

from __future__ import annotations

import math

import gymnasium as gym
import jax.numpy as jnp
from flax import nnx

from rollax import Policy


class Lean(Policy):
    """Pushes the cart by the last number that it sees, against a limit, a plain number that it learns."""

    def __init__(self, observation_space, action_space, config=None):
        super().__init__(observation_space, action_space, config)
        self.limit, self.updates = 0.0, 0

    def compute_actions(self, obs_batch):
        return [int(row[-1] > self.limit) for row in obs_batch], [], {}

    def learn_on_batch(self, batch):
        self.updates += 1
        self.limit += 0.25 * batch.count
        return {"limit": self.limit}

    def get_weights(self):
        return {"limit": self.limit}

    def set_weights(self, weights):
        self.limit = weights["limit"]

    def get_state(self):
        extremes = {"best": math.inf, "worst": -math.inf, "a/b": {"c": jnp.arange(3)}, "a": {"b/c": jnp.zeros(2)}}
        return {**super().get_state(), "updates": self.updates, "list": [1, "two", None, (3.5,)], **extremes}

    def set_state(self, state):
        super().set_state(state)
        self.updates, self.restored = state["updates"], state


class Linear(nnx.Module):
    """The smallest model there is."""

    def __init__(self, observation_space, num_outputs, *, rngs, scale=1.0):
        self.policy = nnx.Linear(4, num_outputs, rngs=rngs)
        self.value = nnx.Linear(4, 1, rngs=rngs)
        self.scale = scale

    def __call__(self, obs):
        return self.scale * self.policy(obs), self.value(obs)[:, 0]


class Pole(gym.Wrapper):
    """CartPole under an import path."""

    def __init__(self, context):
        super().__init__(gym.make("CartPole-v1"))
