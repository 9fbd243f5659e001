"""`Exploration`: what every way of exploring can do, and the one of policies that are distributions themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rollax.batch import SampleBatch
from rollax.models.distributions.base import ActionDistribution

Params = Mapping[str, Any]
OutputsOf = Callable[[Params], np.ndarray]


class Exploration(ABC):
    """Chooses actions from a model's outputs. The random numbers come from the host, so that choosing is pure.

    Attributes:
        num_inputs: width of the model's outputs.
        fetched: the columns that it adds to the rows, name -> width. The first one is always computed: it is not finite
            where the outputs are not.
    """

    num_inputs: int
    fetched: dict[str, int]

    def initial_state(self) -> list[np.ndarray]:
        """What it remembers of each trajectory, at its start: arrays without the axis of the rows."""
        return []

    @abstractmethod
    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """`(noise, state)` for one round of acting.

        Args:
            rng: where it is drawn from.
            rows: S, of which the first may be real and the others padding.
            timestep: environment steps trained on so far.
            state: of the real rows, each [N, ...].
        Returns:
            [S, K] float32, and the state after the round.
        """

    @abstractmethod
    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        """Columns of actions [B, ...] for outputs [B, num_inputs]; traced by JAX."""

    @abstractmethod
    def mode(self, outputs: jax.Array) -> Any:
        """The greedy actions; traced by JAX."""

    @abstractmethod
    def fetches(self, outputs: jax.Array, actions: Any) -> dict[str, jax.Array]:
        """The columns of `fetched`, each [B, width]; traced by JAX."""

    def mask(self, outputs: jax.Array, valid: Any) -> jax.Array:
        """The outputs with those of invalid actions made impossible; traced by JAX."""
        return outputs

    def acting_params(self, params: Params, rng: np.random.Generator) -> Params:
        """The model's parameters to explore with: as they are, by default."""
        return params

    def after_fragment(self, batch: SampleBatch, params: Params, outputs_of: OutputsOf, timestep: int) -> None:
        """Is shown what it has led to.

        Args:
            batch: the rows of a fragment, with `terminateds`, `truncateds` and `trajectory_id`.
            params: the model's parameters.
            outputs_of: the model's outputs [N, num_inputs] for some of the rows, with other parameters.
            timestep: environment steps trained on so far.
        """
        return

    def get_state(self) -> dict[str, Any]:
        """What it remembers beside what it remembers of each trajectory: values that JSON can hold."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` returned."""
        return


class FromDistribution(Exploration):
    """Draws from the distribution that the outputs are the parameters of.

    Args:
        distribution: of the actions.
    """

    def __init__(self, distribution: ActionDistribution) -> None:
        self.distribution = distribution
        self.num_inputs = distribution.num_inputs
        self.fetched = {SampleBatch.ACTION_LOGP: 1, SampleBatch.ACTION_DIST_INPUTS: distribution.num_inputs}

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        return rng.random((rows, self.distribution.num_noise), dtype=np.float32), []

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        return self.distribution.sample(outputs, noise)

    def mode(self, outputs: jax.Array) -> Any:
        return self.distribution.mode(outputs)

    def fetches(self, outputs: jax.Array, actions: Any) -> dict[str, jax.Array]:
        logp = self.distribution.logp(outputs, actions)
        return {SampleBatch.ACTION_LOGP: logp[:, None], SampleBatch.ACTION_DIST_INPUTS: outputs}

    def mask(self, outputs: jax.Array, valid: Any) -> jax.Array:
        return self.distribution.mask(outputs, valid)
