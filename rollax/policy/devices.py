"""Where the arrays of a `Learner` lie: on one device, or its rows spread over all that the process has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Devices:
    """A row of devices. Where there is only one, nothing is placed by hand and nothing costs anything.

    Args:
        devices: JAX's; by default all that the process has of the default backend.
    Attributes:
        count: how many there are.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        devices = jax.local_devices() if devices is None else devices
        self.count = len(devices)
        mesh = Mesh(np.array(devices), ("rows",))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_row = NamedSharding(mesh, PartitionSpec("rows"))

    def everywhere(self, tree: Any) -> Any:
        """The arrays with a copy on each device."""
        return tree if self.count == 1 else jax.device_put(tree, self._everywhere)

    def by_row(self, tree: Any) -> Any:
        """The arrays with an equal share of the rows on each device; the number of rows divides by `count`."""
        return tree if self.count == 1 else jax.device_put(tree, self._by_row)

    def share_rows(self, tree: Any) -> Any:
        """`by_row` inside a compiled function."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._by_row)

    def first(self, tree: Any) -> Any:
        """The arrays as they lie on the first of their devices, uncopied."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, tree)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """The function of arrays, compiled; what it returns is on all devices."""
        return jax.jit(function) if self.count == 1 else jax.jit(function, out_shardings=self._everywhere)
