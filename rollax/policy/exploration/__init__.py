"""`Exploration`: how actions are chosen from a model's outputs. `FromDistribution` draws them from a distribution.

The methods work with arrays of NumPy and JAX; `namespace(array)` is the library of an array. This module does not
import JAX.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core.introspection import overrides
from rollax.core.trees import namespace
from rollax.models.distributions import MASKED_LOGIT, ActionDistribution

Params = Mapping[str, Any]
OutputsOf = Callable[[Params], np.ndarray]


class Exploration(ABC):
    """Chooses actions from a model's outputs. Random numbers are drawn on the host, so the choice is a pure function.

    Attributes:
        num_inputs: width of the model's outputs.
        fetched: the columns that the exploration adds to the rows, name -> width. If the outputs define no action, for
            example because they are NaN, the first of these columns is not finite.
    """

    num_inputs: int
    fetched: dict[str, int]
    recorded: frozenset[str] = frozenset()
    """The columns of `fetched` that `behaviour` reads."""
    from_distribution = False
    """Whether explored actions are drawn from the policy's distribution with the outputs as its parameters."""
    outputs_are_values = False
    """Whether outputs are the values of actions; the state's value is then the largest value of a valid action."""

    @property
    def traced(self) -> Exploration:
        """What compiled functions use: the exploration itself, or a copy whose attributes do not change in training."""
        return self

    def initial_state(self) -> list[np.ndarray]:
        """The exploration state at the start of a trajectory: arrays without the axis of rows."""
        return []

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        """Draws [rows, K] float32 numbers for one acting call, by default K = 0.

        `timestep` counts the steps trained on so far, in the unit of `count_steps_by`.
        """
        return np.zeros((rows, 0), np.float32)

    def advance(self, noise: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Returns the noise [B, K] and the next state, from the drawn numbers and the state of B rows; traced by JAX.

        By default both are unchanged.
        """
        return noise, state

    def sample(self, outputs: Any, noise: Any) -> Any:
        """Returns columns of actions [B, ...] for outputs [B, num_inputs], by default greedy actions; traced by JAX.

        `noise` is the result of `advance`.
        """
        return self.mode(outputs)

    @abstractmethod
    def mode(self, outputs: Any) -> Any:
        """The greedy actions; traced by JAX."""

    @abstractmethod
    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        """The columns of `fetched`, each [B, width]; traced by JAX."""

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray | None:
        """[N, n] the probability of each of n discrete actions with exploration; None if it is unknown.

        `outputs` are [N, num_inputs], with invalid actions masked.
        """
        return None

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        """Returns `action_logp` and `action_dist_inputs` of actions with exploration, as far as they are known.

        The names are the same at every call. `fetches` has the columns of `fetched` as NumPy arrays [N, width], or [N]
        if the width is 1 (but `action_dist_inputs` is always [N, width]).
        """
        return {}

    def acting_params(self, params: Params, rng: np.random.Generator) -> Params:
        """Returns the model parameters to explore with, by default `params`."""
        return params

    def after_fragment(self, batch: SampleBatch, params: Params, outputs_of: OutputsOf, timestep: int) -> None:
        """Adapts to a sampled fragment with `terminateds`, `truncateds` and `trajectory_id`; nothing by default.

        `outputs_of(params)` returns the model's outputs [N, num_inputs] for N rows of the fragment.
        """
        return

    def overrides(self, method: str) -> bool:
        """Whether a method of this name does more here, or in an exploration inside of this one, than by default."""
        return overrides(type(self), Exploration, method)

    def get_state(self) -> dict[str, Any]:
        """The state that does not belong to one trajectory, as JSON values."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        return


class FromDistribution(Exploration):
    """Draws actions from the distribution whose parameters are the model's outputs."""

    from_distribution = True
    recorded = frozenset({SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS})

    def __init__(self, distribution: ActionDistribution) -> None:
        self.distribution = distribution
        self.num_inputs = distribution.num_inputs
        self.fetched = {SampleBatch.ACTION_LOGP: 1, SampleBatch.ACTION_DIST_INPUTS: distribution.num_inputs}

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        return {name: fetches[name] for name in sorted(self.recorded)}

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        return rng.random((rows, self.distribution.num_noise), dtype=np.float32)

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.distribution.sample(outputs, noise)

    def mode(self, outputs: Any) -> Any:
        return self.distribution.mode(outputs)

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        logp = self.distribution.logp(outputs, actions)
        return {SampleBatch.ACTION_LOGP: logp[:, None], SampleBatch.ACTION_DIST_INPUTS: outputs}

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray | None:
        return softmax(outputs) if self.distribution.one_choice else None


def uniform_choice(outputs: Any, uniform: Any) -> Any:
    """[B] a random valid choice for each row, all with equal probability; `uniform` are random numbers [B] in [0, 1].

    Invalid choices have an output of at most `MASKED_LOGIT`.
    """
    xp = namespace(outputs)
    valid = outputs > MASKED_LOGIT
    count = valid.sum(axis=-1)
    # With k from 0: the choice is the first index at which the running count of valid choices exceeds k.
    k = xp.minimum((uniform * count).astype(np.int32), count - 1)
    return xp.argmax(xp.cumsum(valid, axis=-1) > k[:, None], axis=-1).astype(np.int32)


def greedy(outputs: np.ndarray) -> np.ndarray:
    """[N, n] probabilities of the greedy choices, in float64: 1 for the first largest output of each row."""
    return (np.arange(outputs.shape[1]) == outputs.argmax(axis=1)[:, None]).astype(np.float64)


def softmax(preferences: np.ndarray) -> np.ndarray:
    """[N, n] probabilities proportional to exp, in float64."""
    shifted = preferences.astype(np.float64) - preferences.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return weights / weights.sum(axis=-1, keepdims=True)


def log_softmax(preferences: Any) -> Any:
    """[N, n] log-probabilities of `softmax`, in the dtype of the preferences."""
    xp = namespace(preferences)
    shifted = preferences - preferences.max(axis=-1, keepdims=True)
    return shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))
