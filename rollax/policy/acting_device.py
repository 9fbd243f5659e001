"""Where a policy acts in a process with a GPU: small calls on the CPU, all others on the GPU."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from rollax.batch import Columns
from rollax.core import trees

SMALL_CALL = 1e7
"""Floating-point operations of the actor. A CPU computes as many in less time than a GPU takes for a call of any size.

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
    """Copies of arrays on a device, made again if other trees are given: arrays are replaced, not changed in place."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._last: tuple[tuple[Any, ...], Any] | None = None

    def of(self, *trees: Any) -> Any:
        """The copies of these trees."""
        last = self._last  # read once: another thread may act too
        if last is None or any(old is not new for old, new in zip(last[0], trees, strict=True)):
            last = self._last = trees, jax.device_put(trees, self._device)
        return last[1]


class ActingDevice:
    """The arrays of a policy on the device of each call; on the CPU copies, renewed at the first call after an update.

    Args:
        cpu: from `cpu_beside_gpu`.
    """

    def __init__(self, cpu: Any) -> None:
        self._cpu = cpu
        self._small: dict[tuple[Any, int], bool] = {}  # by function and padded number of rows
        self._copies = Copies(cpu)

    def __deepcopy__(self, memo: Any) -> ActingDevice:
        return ActingDevice(self._cpu)  # devices cannot be copied

    def arrays(self, function: Any, params: Columns, extra: Columns, columns: Columns) -> tuple[Columns, Columns]:
        """`params` and `extra` where `function(params, extra, columns)`, compiled by `jax.jit`, is to run."""
        if any(isinstance(leaf, jax.Array) for leaf in trees.leaves(columns)):
            return params, extra  # the caller's arrays may be tied to a device
        key = function, trees.length(columns)
        small = self._small.get(key)
        if small is None:
            small = self._small[key] = self._cost(function, params, extra, columns) <= SMALL_CALL
        return self._copies.of(params, extra) if small else (params, extra)

    def _cost(self, function: Any, params: Columns, extra: Columns, columns: Columns) -> float:
        """The floating-point operations of the call, infinite if they are not known."""
        # For the CPU, because JAX cannot estimate the cost of a call on a GPU.
        there = SingleDeviceSharding(self._cpu)
        described = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=there), (params, extra))
        # Of a copied policy, `function` itself cannot be lowered.
        cost = jax.jit(function).lower(*described, columns).cost_analysis() or {}
        return cost.get("flops", math.inf)
