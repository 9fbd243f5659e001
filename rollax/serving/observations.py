"""`Observations`: the observations of single-agent episodes for a backend, as a mapping with columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollax.core import trees


class Observations(Mapping[str, Any]):
    """Episode id -> observation.

    Attributes:
        ids: ids of the episodes.
        columns: the same observations as columns [N, ...], in that order.
    """

    __slots__ = ("_rows", "columns", "ids")

    def __init__(self, ids: Sequence[str], columns: trees.Tree) -> None:
        self.ids, self.columns = ids, columns
        self._rows: dict[str, Any] | None = None

    def __getitem__(self, episode_id: str) -> Any:
        if self._rows is None:
            self._rows = dict(zip(self.ids, trees.rows(self.columns), strict=True))
        return self._rows[episode_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)
