"""`UpdatesDue`: the number of updates that stored steps have made due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollax.core.stored_values import read_count, read_number

_ROUNDING = 1e-6
"""Tolerance, in updates: in float64, 100 * 0.29 is slightly less than 29."""


@dataclass
class UpdatesDue:
    """Each stored step after the first `learning_starts` makes `training_intensity` updates due.

    Due updates stay due; a change of the settings affects later steps only.
    """

    learning_starts: int
    training_intensity: float
    stored: int = field(init=False)  # steps so far
    before: float = field(init=False)  # updates due when `since` steps were stored
    since: int = field(init=False)  # each stored step after this number of steps makes further updates due

    def __post_init__(self) -> None:
        self.begin(0)

    @property
    def updates(self) -> int:
        """All updates due since the run began, including those already made."""
        return int(self._exactly(self.training_intensity) + _ROUNDING)

    def begin(self, made: int, *, stored: int = 0) -> None:
        """Begins again with `stored` steps: nothing is due beyond the updates already made."""
        self.stored, self.before, self.since = stored, float(made), max(stored, self.learning_starts)

    def add(self, steps: int) -> None:
        self.stored += steps

    def skip(self, made: int) -> None:
        """Skips the due updates that are not made, because nothing can be drawn."""
        self.begin(made, stored=self.stored)

    def get_state(self) -> dict[str, Any]:
        return asdict(self)

    def restore(self, state: Mapping[str, Any], *, made: int, kept: bool, most_steps: int) -> None:
        """Continues the counts of another object, which made `made` updates and whose settings may differ.

        Unless the stored rows are `kept`, `learning_starts` counts from here. After a CheckpointError nothing has
        changed.

        Updates for at most `most_steps` steps, the size of the buffer, stay due: a damaged count cannot make the
        optimizer's step endless.
        """
        if not kept:
            self.begin(made)
            return
        where = "updates due"
        stored, since, starts = (read_count(state, key, where) for key in ("stored", "since", "learning_starts"))
        before, intensity = read_number(state, "before", where), read_number(state, "training_intensity", where)
        self.stored, self.before, self.since = stored, before, since
        if (starts, intensity) != (self.learning_starts, self.training_intensity):
            self.before, self.since = self._exactly(intensity), max(stored, self.learning_starts)
        if self.updates - made > (most := math.ceil(most_steps * self.training_intensity)):
            self.begin(made + most, stored=stored)

    def _exactly(self, training_intensity: float) -> float:
        # A product: rounding errors of a running sum of fractions would add up.
        return self.before + max(self.stored - self.since, 0) * training_intensity
