"""Placement of arrays: on all devices of the process, on the device for acting, and packed for one fetch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from rollax.batch import Columns
from rollax.core import trees


class Devices:
    """Places arrays on devices, by default on all local devices; with a single device it does nothing."""

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self._devices = tuple(jax.local_devices() if devices is None else devices)
        self.count = len(self._devices)

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(_mesh(self._devices), PartitionSpec())

    def _by_row(self, axis: int) -> NamedSharding:
        return NamedSharding(_mesh(self._devices), PartitionSpec(*[None] * axis, "rows"))

    def __deepcopy__(self, memo: Any) -> Devices:
        return self  # devices cannot be copied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Devices) and self._devices == other._devices

    def __hash__(self) -> int:
        return hash(self._devices)

    def everywhere(self, tree: Any) -> Any:
        """Copies the arrays to each device."""
        return tree if self.count == 1 else jax.device_put(tree, self._everywhere)

    def by_row(self, tree: Any, axis: int = 0) -> Any:
        """Divides the rows, which are along `axis`, equally among the devices: each gets consecutive rows.

        The number of rows must be a multiple of `count`.
        """
        return tree if self.count == 1 else jax.device_put(tree, self._by_row(axis))

    def share_rows(self, tree: Any, axis: int = 0) -> Any:
        """`by_row` inside a compiled function, for any number of rows."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._by_row(axis))

    def gathered(self, tree: Any) -> Any:
        """Brings arrays of any devices together on the first device."""
        return tree if self.count == 1 else jax.device_put(tree, self._devices[0])

    def first(self, tree: Any) -> Any:
        """The arrays on the first device, without a copy; arrays in NumPy as they are."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data if isinstance(leaf, jax.Array) else leaf, tree)

    def replicated(self, tree: Any) -> Any:
        """`everywhere` inside a compiled function."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._everywhere)


@cache
def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), ("rows",))


SMALL_CALL = 1e7
"""A call with at most this number of floating-point operations is faster on a CPU than any call on a GPU.

Measured on an H200 with 16 cores: 0.8 to 1.2 ms for a call on the GPU, of 1 row or of 512, with 64 or 1024 hidden
units. On the CPU, 0.1 ms for 1 row and two layers of 64, 0.7 ms for 64 rows and two layers of 256.
"""


@cache
def cpu_beside_gpu() -> Any:
    """The CPU as a device of JAX, if by default JAX computes on a GPU or TPU; None if not, or if the CPU is hidden."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names only the GPU
        return None


class Copies:
    """Copies of trees on a device, made again only if a tree is a new object: arrays never change in place."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def of(self, *trees: Any) -> Any:
        """Returns copies of these trees on the device."""
        last = self._last  # read once: another thread may act too
        if last is None or any(old is not new for old, new in zip(last[0], trees, strict=True)):
            last = self._last = trees, jax.device_put(trees, self._device)
        return last[1]


class ActingDevice:
    """A policy's arrays on the device that is faster for a call; copied to the CPU for the first call after an update.

    Args:
        cpu: the device that `cpu_beside_gpu` returned.
    """

    def __init__(self, cpu: Any) -> None:
        self._cpu = cpu
        self._small: dict[tuple[Any, int], bool] = {}  # by function and padded number of rows
        self._copies = Copies(cpu)

    def __deepcopy__(self, memo: Any) -> ActingDevice:
        return ActingDevice(self._cpu)  # devices cannot be copied

    def arrays(self, function: Any, params: Columns, extra: Columns, columns: Columns) -> tuple[Columns, Columns]:
        """Returns `params` and `extra` on the device for `function(params, extra, columns)`, compiled by `jax.jit`."""
        if any(isinstance(leaf, jax.Array) for leaf in trees.leaves(columns)):
            return params, extra  # the caller's arrays may be tied to a device
        key = function, trees.length(columns)
        small = self._small.get(key)
        if small is None:
            small = self._small[key] = self._cost(function, params, extra, columns) <= SMALL_CALL
        return self._copies.of(params, extra) if small else (params, extra)

    def _cost(self, function: Any, params: Columns, extra: Columns, columns: Columns) -> float:
        """Returns the number of floating-point operations of the call; infinity if JAX does not report it."""
        # For the CPU, because JAX cannot estimate the cost of a call on a GPU.
        there = SingleDeviceSharding(self._cpu)
        described = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=there), (params, extra))
        # The `lower` of a bound method would not pass its object.
        cost = jax.jit(function).lower(*described, columns).cost_analysis() or {}
        return cost.get("flops", math.inf)


@jax.tree_util.register_pytree_node_class
class OneFetch:
    """The arrays of a tree as one array of bytes.

    To fetch an array of any size takes 0.1 ms from a GPU and 10 µs on the CPU. A compiled function packs its results;
    outside of the function, `fetched` unpacks them.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree)
        self._layout = tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)
        self._bytes = jnp.concatenate([_as_bytes(leaf) for leaf in leaves])

    def fetched(self) -> Any:
        """The tree with NumPy arrays, which are views of one array."""
        fetched, leaves, start = np.asarray(self._bytes), [], 0
        for shape, dtype in self._layout:
            stop = start + math.prod(shape) * dtype.itemsize
            leaves.append(fetched[start:stop].view(dtype).reshape(shape))
            start = stop
        return jax.tree.unflatten(self._structure, leaves)

    def tree_flatten(self) -> tuple[tuple[Any], tuple[Any, ...]]:
        return (self._bytes,), (self._structure, self._layout)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, ...], children: tuple[Any]) -> OneFetch:
        packed = object.__new__(cls)
        (packed._bytes,), (packed._structure, packed._layout) = children, static
        return packed


def _as_bytes(array: jax.Array) -> jax.Array:
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    return lax.bitcast_convert_type(array, jnp.uint8).reshape(-1)
