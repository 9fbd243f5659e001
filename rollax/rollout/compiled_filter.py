"""`CompiledFilter`: an observation filter inside a compiled loop, with the statistics of the filter on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core.spaces import Path, walk
from rollax.core.trees import Tree
from rollax.rollout.filters import ObservationFilter


class Moments(NamedTuple):
    """Statistics of a leaf in float32, with the variance, because a sum of squares would grow with the count."""

    count: Any
    mean: Any
    variance: Any


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

    def moments(self) -> dict[Path, Moments]:
        """The current statistics of the filter on the host, by leaf."""
        parts = {path: (leaf.count, leaf.mean, leaf.variance) for path, leaf in self._host.leaves.items()}
        return {path: Moments(*map(jnp.float32, arrays)) for path, arrays in parts.items()}

    def seen(self, moments: Mapping[Path, Moments], obs: Tree, counted: Any) -> dict[Path, Moments]:
        """The statistics after adding the rows of [N, ...] observations for which [N] `counted` is true.

        Source: as `ObservationFilter`, divided by the count:
            V = V_a n_a / n + S_b / n + (m_b - m_a)² n_a n_b / n²
        """
        after: dict[Path, Moments] = {}

        def add(_: spaces.Space, path: Path, leaf: Any) -> None:
            if path not in moments:
                return
            before = moments[path]
            weight = counted.astype(jnp.float32).reshape(-1, *[1] * (leaf.ndim - 1))
            new = weight.sum()
            # Distances from the earlier mean are summed, because sums of large numbers are rounded: otherwise an
            # element that never changes would differ from its own mean.
            leaf = leaf - before.mean
            apart = (leaf * weight).sum(axis=0) / jnp.maximum(new, 1)
            squares = ((leaf - apart) ** 2 * weight).sum(axis=0)
            count = before.count + new
            share = new / jnp.maximum(count, 1)
            kept = 1 - share
            variance = before.variance * kept + squares / jnp.maximum(count, 1) + apart**2 * kept * share
            after[path] = Moments(count, before.mean + apart * share, variance)

        walk(add, self._space, obs)
        return after

    def __call__(self, moments: Mapping[Path, Moments], obs: Tree) -> Tree:
        """The filtered observations."""

        def standardized(_: spaces.Space, path: Path, leaf: Any) -> Any:
            if path not in moments:
                return leaf
            count, mean, variance = moments[path]
            deviation = jnp.where(count > 1, jnp.sqrt(variance) + 1e-8, 1.0)
            return jnp.clip((leaf - mean) / deviation, -self._host.clip, self._host.clip)

        return walk(standardized, self._space, obs) if moments else obs

    def on_host(self, obs: Tree) -> Tree:
        """Filtered columns in NumPy with the dtypes that the filter on the host returns: JAX has no int64."""

        def cast(leaf: spaces.Space, path: Path, part: NDArray) -> NDArray:
            return part if path in self._host.leaves else part.astype(leaf.dtype)

        return walk(cast, self._space, obs)
