"""Exploration by the members of a group, each on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.batch import SampleBatch
from rollax.policy.exploration.exploration import Exploration
from rollax.policy.exploration.q_values import ValueExploration


class GroupExploration(Exploration):
    """Actions of a group whose members explore independently of each other.

    Outputs are the members' values side by side; actions are a tuple with a column for each member.

    Args:
        of_member: how each of them explores.
        members: M, how many there are.
    """

    def __init__(self, of_member: ValueExploration, members: int) -> None:
        self.of_member, self.members = of_member, members
        self.num_inputs = members * of_member.num_inputs
        self.fetched = {SampleBatch.Q_VALUE: 1}

    def noise(
        self, rng: np.random.Generator, rows: int, timestep: int, state: Sequence[Any]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        noise, _ = self.of_member.noise(rng, rows * self.members, timestep, [])
        return noise.reshape(rows, -1), []

    def sample(self, outputs: jax.Array, noise: jax.Array) -> Any:
        actions = self.of_member.sample(self._by_member(outputs), self._by_member(noise))
        return self._joined(actions)

    def mode(self, outputs: jax.Array) -> Any:
        return self._joined(self.of_member.mode(self._by_member(outputs)))

    def fetches(self, outputs: jax.Array, actions: Any) -> dict[str, jax.Array]:
        """The mean of the members' values."""
        columns = jnp.stack(actions, axis=1).reshape(-1)
        values = self.of_member.fetches(self._by_member(outputs), columns)[SampleBatch.Q_VALUE]
        return {SampleBatch.Q_VALUE: values.reshape(-1, self.members).mean(axis=1, keepdims=True)}

    def _by_member(self, array: jax.Array) -> jax.Array:
        """[B·M, ...] from [B, M · ...]."""
        return array.reshape(array.shape[0] * self.members, -1)

    def _joined(self, actions: jax.Array) -> tuple[jax.Array, ...]:
        by_row = actions.reshape(-1, self.members)
        return tuple(by_row[:, member] for member in range(self.members))
