"""Exploration by policies whose outputs are the values of discrete actions, of one agent or of a group's members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.core.trees import namespace
from rollax.models.distributions import MASKED_LOGIT
from rollax.policy.exploration import Exploration, greedy, log_softmax, softmax, uniform_choice

CHOICE = "choice"
"""[N, 2] 1 if the action is the greedy action, else 0; and the number of valid actions."""


class ValueExploration(Exploration):
    """Chooses the best valid action of a Discrete space; subclasses explore."""

    outputs_are_values = True

    def __init__(self, action_space: spaces.Discrete) -> None:
        self.num_inputs = int(action_space.n)
        self._start = int(action_space.start)
        self.fetched = {SampleBatch.Q_VALUE: 1}

    def mode(self, outputs: Any) -> Any:
        return namespace(outputs).argmax(outputs, axis=-1).astype(np.int32) + self._start

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        return {SampleBatch.Q_VALUE: _chosen(outputs, actions - self._start)[:, None]}


class EpsilonGreedy(ValueExploration):
    """Chooses the best action, or with probability ε a random valid action.

    Source: Watkins (1989), "Learning from delayed rewards", chapter 7; ε, a function of the timestep, as in Mnih et al.
        (2015).
    """

    recorded = frozenset({CHOICE})

    def __init__(self, action_space: spaces.Discrete, epsilon: Callable[[float], float]) -> None:
        super().__init__(action_space)
        self.epsilon = epsilon
        self.fetched = {**self.fetched, CHOICE: 2}

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        greedy, valid = actions == self.mode(outputs), (outputs > MASKED_LOGIT).sum(axis=-1)
        choice = namespace(outputs).stack([greedy, valid], axis=1).astype(outputs.dtype)
        return {**super().fetches(outputs, actions), CHOICE: choice}

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        greedy, valid = fetches[CHOICE].T
        epsilon = self.epsilon(timestep)
        with np.errstate(divide="ignore"):  # a logged action may have probability 0
            return {SampleBatch.ACTION_LOGP: np.log((1 - epsilon) * greedy + epsilon / valid).astype(np.float32)}

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        uniform = rng.random((rows, 2), dtype=np.float32)
        uniform[:, 0] = uniform[:, 0] < self.epsilon(timestep)  # 1 where the second number chooses the action
        return uniform

    def sample(self, outputs: Any, noise: Any) -> Any:
        random = uniform_choice(outputs, noise[:, 1]) + self._start
        return namespace(outputs).where(noise[:, 0] > 0, random, self.mode(outputs))

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray:
        valid, epsilon = outputs > MASKED_LOGIT, self.epsilon(timestep)
        return (1 - epsilon) * greedy(outputs) + epsilon * valid / valid.sum(axis=1, keepdims=True)


class SoftQ(ValueExploration):
    """Chooses actions with probabilities proportional to exp(Q / τ).

    Source: Boltzmann exploration; Sutton and Barto (2018), section 13.1, with action values as preferences. Drawn by
        the Gumbel-max trick: argmax_a Q(a) / τ + G_a, with independent Gumbel numbers G_a.
    """

    recorded = frozenset({SampleBatch.ACTION_LOGP})

    def __init__(self, action_space: spaces.Discrete, temperature: float) -> None:
        super().__init__(action_space)
        self.temperature = temperature
        self.fetched = {**self.fetched, SampleBatch.ACTION_LOGP: 1}

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        logp = _chosen(log_softmax(self._preferences(outputs)), actions - self._start)
        return {**super().fetches(outputs, actions), SampleBatch.ACTION_LOGP: logp[:, None]}

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        return {SampleBatch.ACTION_LOGP: fetches[SampleBatch.ACTION_LOGP]}

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        return rng.gumbel(size=(rows, self.num_inputs)).astype(np.float32)

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.mode(self._preferences(outputs) + noise)

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray:
        return softmax(self._preferences(outputs))

    def _preferences(self, outputs: Any) -> Any:
        """Q / τ; minus infinity for invalid actions, whatever τ is."""
        invalid = outputs <= MASKED_LOGIT  # false for NaN, which is kept
        return namespace(outputs).where(invalid, -np.inf, outputs / self.temperature).astype(outputs.dtype)


class GroupExploration(Exploration):
    """The members of a group explore independently.

    Outputs are the concatenated values of the M members; actions are a tuple with a column for each member.
    """

    def __init__(self, of_member: ValueExploration, members: int) -> None:
        self.of_member, self.members = of_member, members
        self.num_inputs = members * of_member.num_inputs
        self.fetched = {SampleBatch.Q_VALUE: 1}

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        return self.of_member.noise(rng, rows * self.members, timestep).reshape(rows, -1)

    def sample(self, outputs: Any, noise: Any) -> Any:
        actions = self.of_member.sample(self._by_member(outputs), self._by_member(noise))
        return self._joined(actions)

    def mode(self, outputs: Any) -> Any:
        return self._joined(self.of_member.mode(self._by_member(outputs)))

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        """The mean of the members' values."""
        columns = namespace(outputs).stack(actions, axis=1).reshape(-1)
        values = self.of_member.fetches(self._by_member(outputs), columns)[SampleBatch.Q_VALUE]
        return {SampleBatch.Q_VALUE: values.reshape(-1, self.members).mean(axis=1, keepdims=True)}

    def _by_member(self, array: Any) -> Any:
        """[B·M, ...] from [B, M · ...]."""
        return array.reshape(array.shape[0] * self.members, -1)

    def _joined(self, actions: Any) -> tuple[Any, ...]:
        return tuple(actions.reshape(-1, self.members).T)


def _chosen(values: Any, actions: Any) -> Any:
    """[B] the entry of each row [B, A] at its action."""
    return namespace(values).take_along_axis(values, actions[:, None], axis=1)[:, 0]
