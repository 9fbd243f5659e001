"""A small `PPO`, and experience to learn from."""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

from rollax import SampleBatch
from rollax.algorithms.ppo import PPO
from rollax.models.outputs import Outputs

SEEN, CHOICES = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2)
SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 3, "sgd_minibatch_size": 8, "num_sgd_iter": 2, "lr": 1e-2}


def make(observation_space=SEEN, action_space=CHOICES, cls=PPO, **config):
    return cls.make_policy(observation_space, action_space, {**SMALL, **config})


def seen(rows, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 3)).astype(np.float32)


def experience(policy, rows, seed=0):
    """A postprocessed batch of the policy's own actions, with random advantages and targets."""
    random = np.random.default_rng(seed)
    obs = seen(rows, seed)
    actions, _, fetches = policy.compute_actions(obs)
    advantages, targets = random.standard_normal((2, rows), dtype=np.float32)
    columns = {"obs": obs, "actions": actions, "advantages": advantages, "value_targets": 3 * targets}
    return SampleBatch({**columns, **fetches})


class Stateful(nnx.Module):
    """A model with dropout and batch statistics."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.policy, self.value = nnx.Linear(3, num_outputs, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, obs):
        hidden = self.dropout(self.norm(obs))
        return Outputs(self.policy(hidden), self.value(hidden)[:, 0])


class Half(nnx.Module):
    """Computes in float16 with parameters in bfloat16; the observations of a Dict are its entry `obs`."""

    def __init__(self, observation_space, num_outputs, *, rngs):
        kinds = {"dtype": jnp.float16, "param_dtype": jnp.bfloat16, "rngs": rngs}
        self.policy, self.value = nnx.Linear(3, num_outputs, **kinds), nnx.Linear(3, 1, **kinds)

    def __call__(self, obs):
        obs = obs["obs"] if isinstance(obs, dict) else obs
        return Outputs(self.policy(obs), self.value(obs)[:, 0])
