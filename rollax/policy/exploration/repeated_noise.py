"""Exploration whose random numbers stay the same for several steps, so that their effects add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rollax.core.trees import namespace
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.wrapper import ExplorationWrapper


class RepeatedNoise(ExplorationWrapper):
    """Keeps the noise of another exploration for k steps of a trajectory, for random numbers k.

    The actions still depend on each observation, through the model's outputs.

    Source: Kim et al. (2026), arXiv:2604.04539.

    Args:
        inner: draws noise without a state, such as `FromDistribution`.
        lengths: the possible values of k.
        probabilities: the probability of each value.
    """

    own_numbers = 1  # k, for noise that begins at this step

    def __init__(self, inner: Exploration, lengths: ArrayLike, probabilities: ArrayLike) -> None:
        super().__init__(inner)
        self.from_distribution = False  # the noise of an action is mostly that of the action before
        self._lengths = np.asarray(lengths, np.float32)
        self._up_to = np.cumsum(probabilities)
        self._width = inner.noise(np.random.default_rng(0), 1, 0).shape[1]

    def initial_state(self) -> list[np.ndarray]:
        return [np.zeros(self._width, np.float32), np.zeros(1, np.float32)]

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        inner = self.inner.noise(rng, rows, timestep)
        # The sum of all probabilities may be a little below 1.
        places = np.minimum(np.searchsorted(self._up_to, rng.random(rows), side="right"), len(self._lengths) - 1)
        return np.concatenate([inner, self._lengths[places][:, None]], axis=1)

    def advance(self, noise: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        fresh, lengths = self.parts(noise)
        kept, remaining = state
        xp = namespace(noise)
        begins = remaining < 1
        kept, remaining = xp.where(begins, fresh, kept), xp.where(begins, lengths, remaining) - 1
        return xp.concatenate([kept, lengths], axis=1), [kept, remaining]

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.inner.sample(outputs, self.parts(noise)[0])


def repeat_probabilities(longest: int) -> np.ndarray:
    """Returns [longest] probabilities of k = 1, 2, ..., in proportion to k⁻².

    Source: Dabney et al. (2021), "Temporally-extended ε-greedy exploration", arXiv:2006.01782.
    """
    weights = np.arange(1, longest + 1, dtype=np.float64) ** -2
    return weights / weights.sum()
