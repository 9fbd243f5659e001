"""`ExplorationWrapper`: an exploration that changes another exploration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core.introspection import overrides
from rollax.core.trees import namespace
from rollax.policy.exploration import Exploration, OutputsOf, Params


class ExplorationWrapper(Exploration):
    """Forwards actions and state to `inner`; a subclass appends `own_numbers` columns to the noise of `inner`."""

    own_numbers = 0

    def __init__(self, inner: Exploration) -> None:
        self.inner = inner
        self.num_inputs = inner.num_inputs
        self.fetched = inner.fetched
        self.recorded = inner.recorded
        self.from_distribution = inner.from_distribution
        self.outputs_are_values = inner.outputs_are_values

    def initial_state(self) -> list[np.ndarray]:
        return self.inner.initial_state()

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        return self.inner.noise(rng, rows, timestep)

    def advance(self, noise: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        inner, own = self.parts(noise)
        inner, state = self.inner.advance(inner, state)
        return namespace(noise).concatenate([inner, own], axis=1), state

    def parts(self, noise: Any) -> tuple[Any, Any]:
        """Returns the columns of noise of `inner`, and the appended columns."""
        first = noise.shape[1] - self.own_numbers
        return noise[:, :first], noise[:, first:]

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.inner.sample(outputs, noise)

    def mode(self, outputs: Any) -> Any:
        return self.inner.mode(outputs)

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        return self.inner.fetches(outputs, actions)

    def acting_params(self, params: Params, rng: np.random.Generator) -> Params:
        return self.inner.acting_params(params, rng)

    def after_fragment(self, batch: SampleBatch, params: Params, outputs_of: OutputsOf, timestep: int) -> None:
        self.inner.after_fragment(batch, params, outputs_of, timestep)

    def overrides(self, method: str) -> bool:
        return overrides(type(self), ExplorationWrapper, method) or self.inner.overrides(method)

    def get_state(self) -> dict[str, Any]:
        return self.inner.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.inner.set_state(state)
