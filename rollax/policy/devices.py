"""`Devices`: the placement of a learner's arrays, on one device or with the rows divided among several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Devices:
    """Places arrays on devices; with a single device it does nothing.

    Args:
        devices: of JAX; by default all local ones of the default backend.
    Attributes:
        count: their number.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        devices = jax.local_devices() if devices is None else devices
        self.count = len(devices)
        mesh = Mesh(np.array(devices), ("rows",))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_row = NamedSharding(mesh, PartitionSpec("rows"))

    def everywhere(self, tree: Any) -> Any:
        """Copies the arrays to each device."""
        return tree if self.count == 1 else jax.device_put(tree, self._everywhere)

    def by_row(self, tree: Any) -> Any:
        """Divides the rows equally among the devices; their number is a multiple of `count`."""
        return tree if self.count == 1 else jax.device_put(tree, self._by_row)

    def share_rows(self, tree: Any) -> Any:
        """`by_row` inside a compiled function."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._by_row)

    def first(self, tree: Any) -> Any:
        """The arrays on the first device, without a copy."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, tree)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Compiles a function; its results are on all devices."""
        return jax.jit(function) if self.count == 1 else jax.jit(function, out_shardings=self._everywhere)
