"""`UpdatesDue`: how many updates the stored steps have made due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.state import count, number


class UpdatesDue:
    """Each stored step after the first `learning_starts` makes `training_intensity` updates due.

    Updates that are due stay due; a change of the settings acts on later steps.

    Args:
        learning_starts: steps that make no update due.
        training_intensity: updates for each later step.
    """

    def __init__(self, learning_starts: int, training_intensity: float) -> None:
        self.learning_starts, self.training_intensity = learning_starts, training_intensity
        self.begin(0)

    @property
    def updates(self) -> int:
        """All updates due since the run began, those made included."""
        return int(self._exactly(self.training_intensity))

    def begin(self, made: int, *, stored: int = 0) -> None:
        """Begins again: nothing is due beyond the updates already made.

        Args:
            made: how many.
            stored: steps that are in memory already.
        """
        self._stored = stored
        # Each stored step after `_since` makes its part due, beyond `_before`. A product, as a running sum of fractions
        # would not reach whole numbers exactly.
        self._before, self._since = float(made), max(stored, self.learning_starts)

    def add(self, steps: int) -> None:
        """Counts stored steps."""
        self._stored += steps

    def skip(self, made: int) -> None:
        """Skips the updates that are due, as there is nothing to draw: only later steps make updates due.

        Args:
            made: updates so far.
        """
        self.begin(made, stored=self._stored)

    def get_state(self) -> dict[str, Any]:
        """The counts, and the settings they were made with, for `restore`."""
        return {
            "stored": self._stored,
            "before": self._before,
            "since": self._since,
            "learning_starts": self.learning_starts,
            "training_intensity": self.training_intensity,
        }

    def restore(self, state: Mapping[str, Any], *, made: int, kept: bool) -> None:
        """Continues the counts of another object, whose settings may differ.

        Args:
            state: what its `get_state` returned.
            made: updates made there.
            kept: whether the stored steps were restored too; if not, `learning_starts` counts from here.
        Raises:
            CheckpointError: a number is missing or wrong; nothing has changed then.
        """
        if not kept:
            self.begin(made)
            return
        where = "updates due"
        stored, since, starts = (count(state, key, where) for key in ("stored", "since", "learning_starts"))
        before, intensity = number(state, "before", where), number(state, "training_intensity", where)
        self._stored, self._before, self._since = stored, before, since
        if (starts, intensity) != (self.learning_starts, self.training_intensity):
            self._before = self._exactly(intensity)
            self._since = max(self._stored, self.learning_starts)

    def _exactly(self, training_intensity: float) -> float:
        return self._before + max(self._stored - self._since, 0) * training_intensity
