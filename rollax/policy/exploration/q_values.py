"""Exploration by policies whose outputs are the values of discrete actions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.models.distributions.base import MASKED_LOGIT
from rollax.ops.q_learning import chosen
from rollax.policy.exploration.exploration import Exploration


class ValueExploration(Exploration):
    """What those have in common: the greedy action is the best valid one.

    Args:
        action_space: Discrete.
    """

    def __init__(self, action_space: spaces.Discrete) -> None:
        self.num_inputs = int(action_space.n)
        self._start = int(action_space.start)
        self.fetched = {SampleBatch.Q_VALUE: 1}

    def mode(self, outputs: jax.Array) -> Any:
        return jnp.argmax(outputs, axis=-1).astype(jnp.int32) + self._start

    def fetches(self, outputs: jax.Array, actions: Any) -> dict[str, jax.Array]:
        return {SampleBatch.Q_VALUE: chosen(outputs, actions - self._start)[:, None]}

    def mask(self, outputs: jax.Array, valid: Any) -> jax.Array:
        return jnp.where(jnp.asarray(valid) > 0, outputs, MASKED_LOGIT)

    @abstractmethod
    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any: ...


class EpsilonGreedy(ValueExploration):
    """The best action, or with probability ε any valid one.

    Source: Watkins (1989), "Learning from delayed rewards", chapter 7; ε as in Mnih et al. (2015).

    Args:
        action_space: Discrete.
        epsilon: timestep -> ε.
    """

    def __init__(self, action_space: spaces.Discrete, epsilon: Callable[[float], float]) -> None:
        super().__init__(action_space)
        self.epsilon = epsilon

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        uniform = rng.random((rows, 2), dtype=np.float32)
        uniform[:, 0] = uniform[:, 0] < self.epsilon(timestep)  # 1 where the second number chooses
        return uniform, []

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        valid = outputs > MASKED_LOGIT
        count = valid.sum(axis=-1)
        # The k-th valid action is the first at which k + 1 of them have been counted.
        wanted = jnp.minimum((noise[:, 1] * count).astype(jnp.int32), count - 1)
        anyone = jnp.argmax(jnp.cumsum(valid, axis=-1) > wanted[:, None], axis=-1).astype(jnp.int32) + self._start
        return jnp.where(noise[:, 0] > 0, anyone, self.mode(outputs))


class SoftQ(ValueExploration):
    """Actions with probabilities proportional to exp(Q / τ).

    Source: Boltzmann exploration; Sutton and Barto (2018), section 13.1, with action values as preferences. Drawn by
        the Gumbel-max trick: argmax_a Q(a) / τ + G_a, with independent Gumbel numbers G_a.

    Args:
        action_space: Discrete.
        temperature: τ > 0.
    """

    def __init__(self, action_space: spaces.Discrete, temperature: float) -> None:
        super().__init__(action_space)
        self.temperature = temperature

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        return rng.gumbel(size=(rows, self.num_inputs)).astype(np.float32), []

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        return self.mode(outputs / self.temperature + noise)
