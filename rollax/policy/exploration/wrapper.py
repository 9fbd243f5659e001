"""Exploration around another one: as that one is, but for what a subclass changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.models.distributions.base import MASKED_LOGIT
from rollax.models.distributions.discrete import Categorical
from rollax.policy.exploration.exploration import Exploration, OutputsOf, Params


class ExplorationWrapper(Exploration):
    """Takes columns of noise of its own after those of the exploration inside it.

    Args:
        inner: what it is around.
    """

    def __init__(self, inner: Exploration) -> None:
        self.inner = inner
        self.num_inputs = inner.num_inputs
        self.fetched = inner.fetched

    def initial_state(self) -> list[np.ndarray]:
        return self.inner.initial_state()

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        return self.inner.noise(rng, rows, timestep, state)

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        return self.inner.sample(outputs, noise)

    def mode(self, outputs: jax.Array) -> Any:
        return self.inner.mode(outputs)

    def fetches(self, outputs: jax.Array, actions: Any) -> dict[str, jax.Array]:
        return self.inner.fetches(outputs, actions)

    def mask(self, outputs: jax.Array, valid: Any) -> jax.Array:
        return self.inner.mask(outputs, valid)

    def acting_params(self, params: Params, rng: np.random.Generator) -> Params:
        return self.inner.acting_params(params, rng)

    def after_fragment(self, batch: SampleBatch, params: Params, outputs_of: OutputsOf, timestep: int) -> None:
        self.inner.after_fragment(batch, params, outputs_of, timestep)

    def get_state(self) -> dict[str, Any]:
        return self.inner.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.inner.set_state(state)


class RandomAtFirst(ExplorationWrapper):
    """Any valid action, all equally likely, for some steps; then what the exploration inside it does.

    Args:
        inner: what comes then.
        action_space: Discrete, or a Box, of which the actions are uniform in [-1, 1].
        steps: environment steps; sampling goes on to the end of the fragment that they end in.
    """

    def __init__(self, inner: Exploration, action_space: spaces.Discrete | spaces.Box, steps: int) -> None:
        super().__init__(inner)
        self._steps = steps
        self._shape = action_space.shape or ()
        self._choices: Categorical | None = None
        if isinstance(action_space, spaces.Discrete):
            self._choices = Categorical(int(action_space.n), int(action_space.start))
        self._width = math.prod(self._shape)

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        own = np.zeros((rows, self._width + 1), np.float32)  # the last column is 1 where the others choose
        if timestep < self._steps:
            rng.random(dtype=np.float32, out=own)
            own[:, -1] = 1.0
        inner, state = self.inner.noise(rng, rows, timestep, state)
        return np.concatenate([inner, own], axis=1), state

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        inner, own = noise[:, : -self._width - 1], noise[:, -self._width - 1 :]
        actions = self.inner.sample(outputs, inner)
        is_random = own[:, -1].reshape(-1, *(1,) * len(self._shape)) > 0
        return jnp.where(is_random, self._uniform(outputs, own[:, :-1]), actions)

    def _uniform(self, outputs: jax.Array, uniform: jax.Array) -> jax.Array:
        if self._choices is None:
            return 2.0 * uniform.reshape(-1, *self._shape) - 1.0
        equal = jnp.where(outputs > MASKED_LOGIT, 0.0, MASKED_LOGIT)
        return self._choices.sample(equal, uniform)
