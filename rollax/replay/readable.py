"""`ReadableRows`: how draws read the rows of a buffer, in memory or elsewhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollax.core import trees


class Indexed(Protocol):
    """Numbers by slot: an array, or an object that computes them when they are read."""

    def __getitem__(self, slots: NDArray, /) -> NDArray: ...


class ReadableLinks(Protocol):
    """How slots follow each other; see `Links`."""

    @property
    def filled(self) -> int: ...
    @property
    def number(self) -> Indexed: ...
    @property
    def preceding(self) -> Indexed: ...
    @property
    def following(self) -> Indexed: ...
    @property
    def observed(self) -> Indexed: ...
    @property
    def terminated(self) -> Indexed: ...
    @property
    def truncated(self) -> Indexed: ...
    def indices(self, slots: NDArray) -> NDArray[np.int64]: ...


class ReadableRows(Protocol):
    """Columns by slot; see `StoredRows`."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def links(self) -> ReadableLinks: ...
    @property
    def rewards(self) -> Indexed: ...
    @property
    def bytes_per_slot(self) -> int: ...
    def read(self, name: str, slots: NDArray[np.integer]) -> trees.Tree: ...
