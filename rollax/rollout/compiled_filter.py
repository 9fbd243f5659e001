"""`CompiledFilter`: an observation filter inside a compiled loop, with the statistics of the filter on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core.spaces import Path, walk
from rollax.core.trees import Tree
from rollax.policy.traced_moments import TracedMoments
from rollax.rollout.filters import ObservationFilter


class CompiledFilter:
    """An `ObservationFilter` as functions that JAX traces; they have no effect if the filter has no leaves.

    Within a fragment the statistics are float32; the filter on the host adds up the same observations in float64.

    Args:
        host: the filter.
        space: the observation space.
    """

    def __init__(self, host: ObservationFilter, space: spaces.Space) -> None:
        self._host, self._space = host, space
        self.active = bool(host.leaves)

    def moments(self) -> dict[Path, TracedMoments]:
        """The current statistics of the filter on the host, by leaf."""
        return {path: TracedMoments.of(leaf) for path, leaf in self._host.leaves.items()}

    def seen(self, moments: Mapping[Path, TracedMoments], obs: Tree, counted: Any) -> dict[Path, TracedMoments]:
        """The statistics after adding the rows of [N, ...] observations for which [N] `counted` is true."""
        after: dict[Path, TracedMoments] = {}

        def add(_: spaces.Space, path: Path, leaf: Any) -> None:
            if path in moments:
                after[path] = moments[path].with_rows(leaf, counted)

        walk(add, self._space, obs)
        return after

    def __call__(self, moments: Mapping[Path, TracedMoments], obs: Tree) -> Tree:
        """The filtered observations."""

        def standardized(_: spaces.Space, path: Path, leaf: Any) -> Any:
            if path not in moments:
                return leaf
            scaled = (leaf - moments[path].mean) / moments[path].deviation
            return jnp.clip(scaled, -self._host.clip, self._host.clip)

        return walk(standardized, self._space, obs) if moments else obs

    def on_host(self, obs: Tree) -> Tree:
        """Filtered columns in NumPy with the dtypes that the filter on the host returns: JAX has no int64."""

        def cast(leaf: spaces.Space, path: Path, part: NDArray) -> NDArray:
            return part if path in self._host.leaves else part.astype(leaf.dtype)

        return walk(cast, self._space, obs)
