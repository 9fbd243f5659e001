"""`UpdatesDue`: how many updates the steps that are kept to be learned from have made due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollax.state import count, number


class UpdatesDue:
    """Each step that is stored makes `training_intensity` updates due, from `learning_starts` steps in memory on.

    It counts on from the updates that were made before: its number is how many there are to have been in all. What
    has once become due stays so; another setting acts on the steps that come from then on.

    Args:
        learning_starts: steps that are stored before any makes an update due.
        training_intensity: updates for each step.
    """

    def __init__(self, learning_starts: int, training_intensity: float) -> None:
        self.learning_starts, self.training_intensity = learning_starts, training_intensity
        self.begin(0)

    @property
    def updates(self) -> int:
        """Those that are to have been made by now, since the run began."""
        return int(self._exactly(self.training_intensity))

    def begin(self, made: int, *, stored: int = 0) -> None:
        """Nothing is due beyond the updates that were made.

        Args:
            made: how many.
            stored: steps that are in memory already.
        """
        self._stored = stored
        # From `_since` stored steps on each makes its part due, beside the updates that were due by then. A product
        # instead of a running sum: sums of a fraction come out a little beside the whole numbers.
        self._before, self._since = float(made), max(stored, self.learning_starts)

    def add(self, steps: int) -> None:
        """So many more have been stored."""
        self._stored += steps

    def forgo(self, made: int) -> None:
        """What is due is not to be made, for there is nothing to draw: only later steps make updates due.

        Args:
            made: the updates that were made.
        """
        self.begin(made, stored=self._stored)

    def get_state(self) -> dict[str, Any]:
        """Everything, and the settings that it was counted with, for `restore`."""
        return {
            "stored": self._stored,
            "before": self._before,
            "since": self._since,
            "learning_starts": self.learning_starts,
            "training_intensity": self.training_intensity,
        }

    def restore(self, state: Mapping[str, Any] | None, *, made: int, kept: bool) -> None:
        """Counts on where another has stopped, whose settings may have been others.

        Args:
            state: what its `get_state` returned; None where an older version has saved, which did not count so.
            made: the updates that were made there.
            kept: whether what was stored there has come along; if not, `learning_starts` counts from here.
        Raises:
            CheckpointError: a number is missing or wrong; nothing has changed then.
        """
        if not kept or state is None:
            begun = kept and made > 0
            self.begin(made, stored=self.learning_starts if begun else 0)
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
