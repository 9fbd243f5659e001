"""A model that is a table, so that probabilities, values and gradients can be derived by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

from rollax import Outputs, SampleBatch


class Table(nnx.Module):
    """Logits and a value for each of the states of a Discrete observation space."""

    def __init__(self, observation_space: spaces.Discrete, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        states = int(observation_space.n)
        self.logits = nnx.Param(jnp.zeros((states, num_outputs), jnp.float32))
        self.values = nnx.Param(jnp.zeros(states, jnp.float32))

    def __call__(self, obs):
        return Outputs(self.logits[obs], self.values[obs])


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def two_rows(**columns) -> SampleBatch:
    """Two transitions, as a replay buffer draws them, with these columns too."""
    return SampleBatch(
        {
            "obs": np.array([0, 1]),
            "rewards": f32(1, 2),
            "new_obs": np.array([1, 2]),
            "discounts": f32(0.5, 0.0),
            "weights": f32(1, 1),
            **columns,
        }
    )
