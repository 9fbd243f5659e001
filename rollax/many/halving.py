"""`Halving`: successive halving, by which only the better part of many runs trains to the end.

Source: Jamieson and Talwalkar (2016), arXiv:1502.07943, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

Run = TypeVar("Run", bound=Hashable)


@dataclass(frozen=True)
class Halving:
    """The rungs `first · factor^k`, k = 0, 1, …: at each rung the best ⌈n / factor⌉ of n runs go on.

    Args:
        first: the first rung, in the unit of the limit of a run, such as environment steps.
        factor: a whole number of at least 2.
    """

    first: int
    factor: int = 2

    def rungs(self, limit: float) -> Iterator[int]:
        """Yields the rungs below `limit`."""
        rung = self.first
        while rung < limit:
            yield rung
            rung *= self.factor

    def ranked(self, scores: Mapping[Run, float | None]) -> tuple[list[Run], list[Run]]:
        """Returns the runs that go on and the runs that stop at a rung, in both lists the best first.

        Runs without a score are last. Of equal runs, the one that is first in `scores` is better.
        """
        order = {run: -math.inf if score is None else score for run, score in scores.items()}
        best_first = sorted(order, key=lambda run: -order[run])  # stable
        kept = math.ceil(len(best_first) / self.factor)
        return best_first[:kept], best_first[kept:]
