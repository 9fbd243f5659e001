"""A model that is a table, so that probabilities, values and gradients can be derived by hand."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

from rollax import Outputs, SampleBatch
from rollax.policy.update_plan import Minibatches


class Table(nnx.Module):
    """Logits and a value for each of the states of a Discrete observation space."""

    def __init__(self, observation_space: spaces.Discrete, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        states = int(observation_space.n)
        self.logits = nnx.Param(jnp.zeros((states, num_outputs), jnp.float32))
        self.values = nnx.Param(jnp.zeros(states, jnp.float32))

    def __call__(self, obs):
        return Outputs(self.logits[obs], self.values[obs])


VTRACE = {"gamma": 0.5, "vtrace_clip_rho_threshold": 2.0, "vtrace_clip_pg_rho_threshold": 3.0}
VTRACE |= {"vf_loss_coeff": 0.25, "entropy_coeff": 0.1}
TABLE: dict[str, Any] = {"model": {"custom_model": Table}, "seed": 0}


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def entropy(p: float) -> float:
    """The entropy of two choices, with probability p of one of them."""
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def kl(q: float, p: float) -> float:
    """KL(q || p) of two choices."""
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


def logits_of(*probabilities: float) -> np.ndarray:
    """[states, 2] logits, with these probabilities of action 0."""
    return np.log([[p, 1 - p] for p in probabilities])


def one_gradient(policy: Any, columns: dict[str, np.ndarray], rows: list[int]) -> tuple[dict[str, np.ndarray], dict]:
    """The gradient of one minibatch of these rows, of which negative ones are padding, and its statistics."""
    plan = Minibatches(np.array([rows], np.int32), 1, 0, len(rows))
    gradients, stats = policy.learner.gradients(columns, plan, policy.coefficients())
    return {name: np.asarray(value) for name, value in gradients.items()}, stats


def set_tables(policy: Any, weights: dict[str, Any], target_weights: dict[str, Any]) -> None:
    """Sets the weights of a policy and those of its target network."""
    policy.set_weights(target_weights)
    targets = {name: jnp.array(value) for name, value in policy.targets.items()}
    policy.set_weights(weights)
    policy.learner.set_targets(targets)


LINE = spaces.Discrete(3)
"""Three states, observed as one-hot vectors, so that a layer without a hidden one is a table of the states."""
BOX = spaces.Box(-1, 1, (1,), np.float32)
HALF = np.arctanh(0.5)


def arrays(columns: Any) -> dict[str, np.ndarray]:
    """Copies of named arrays."""
    return {name: np.array(value) for name, value in columns.items()}


def two_rows(**columns) -> SampleBatch:
    """Two transitions in `LINE`, as a replay buffer draws them, with these columns too."""
    return SampleBatch(
        {
            "obs": np.array([0, 1]),
            "actions": f32(0.2, -0.4)[:, None],
            "rewards": f32(1, 2),
            "new_obs": np.array([1, 2]),
            "discounts": f32(0.5, 0.0),
            "weights": f32(1, 1),
            **columns,
        }
    )
