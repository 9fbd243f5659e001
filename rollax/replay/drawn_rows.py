"""What drawing reads of rows, which are in memory (`StoredRows`) or in files (`MappedRows`)."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from rollax import trees

BySlot = Any
"""An array [slots], or an object whose elements are computed, indexed by an array of slots."""


class DrawnLinks(Protocol):
    """The places of rows in their trajectories; see `Links`."""

    following: BySlot
    preceding: BySlot
    number: BySlot
    terminated: BySlot
    truncated: BySlot
    observed: BySlot

    @property
    def filled(self) -> int: ...

    def indices(self, slots: NDArray) -> NDArray: ...


class DrawnRows(Protocol):
    """The columns of rows; see `StoredRows`."""

    names: tuple[str, ...]

    @property
    def links(self) -> DrawnLinks: ...

    @property
    def rewards(self) -> BySlot: ...

    @property
    def bytes_per_slot(self) -> int: ...

    def read(self, name: str, slots: NDArray) -> trees.Tree: ...
