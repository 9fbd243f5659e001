"""`Devices`: where arrays are, on one device or on all devices of the process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Devices:
    """Places arrays on devices, by default on all local devices; with a single device it does nothing."""

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self._devices = tuple(jax.local_devices() if devices is None else devices)
        self.count = len(self._devices)

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(_mesh(self._devices), PartitionSpec())

    @property
    def _by_row(self) -> NamedSharding:
        return NamedSharding(_mesh(self._devices), PartitionSpec("rows"))

    def __deepcopy__(self, memo: Any) -> Devices:
        return self  # devices cannot be copied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Devices) and self._devices == other._devices

    def __hash__(self) -> int:
        return hash(self._devices)

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

    def replicated(self, tree: Any) -> Any:
        """`everywhere` inside a compiled function."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._everywhere)


@cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), ("rows",))
