"""`Draw`: how the experience of an update is drawn from a replay buffer, by default as single transitions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollax.batch import SampleBatch

if TYPE_CHECKING:
    from rollax.config import TrainerConfig
    from rollax.replay.replay import Replay

TRANSITION = (
    *(SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.DISCOUNTS, SampleBatch.WEIGHTS),
    SampleBatch.NEW_OBS,
)
"""The columns of transitions. Instead of `new_obs`, sequences have `target_steps`: for each row, the observation to
bootstrap from, as a position in the row's sequence. A loss reads `target_rows`, the positions in its whole batch."""
TRANSITION_SAMPLED = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TRAJECTORY_ID)
"""The sampled columns that transitions are computed from, which every replay buffer stores."""


@dataclass(frozen=True)
class Draw:
    """How the experience of an update is drawn from a replay buffer: this class draws single transitions.

    An algorithm returns a draw from `replayed`. A subclass may override the method `draw`, to change goals and rewards,
    to normalize, or to add columns. The same draw works with every buffer: uniform, prioritized, mixed, in files, and
    in replay shards, to which it is sent by pickle. All random numbers must come from the argument `rng`, so that a run
    can be repeated.

    Attributes:
        columns: the columns that a buffer stores in addition to the columns of transitions.
    """

    _: KW_ONLY
    columns: tuple[str, ...] = ()

    @property
    def sequence_length(self) -> int | None:
        """The number of rows of a sequence to learn from; None for a draw of single transitions."""
        return None

    def in_run(self, config: TrainerConfig) -> Draw:
        """Returns the draw for a run with this config; an override may add what depends on the environment."""
        return self

    def units(self, rows: int) -> int:
        """The number of transitions, or sequences, in an update of this many rows."""
        return rows

    def draw(self, replay: Replay, count: int, rng: np.random.Generator, beta: float) -> SampleBatch:
        """Returns a batch for the updates of a policy.

        Args:
            replay: the buffer, or one of several buffers, with at least one transition.
            count: B, the number of transitions or sequences.
            rng: random generator.
            beta: exponent of the importance weights.
        Returns:
            The columns that the algorithm's method `loss_columns` reads, and `indices` for `update_priorities`.
        """
        return replay.transitions(replay.draw_slots(count, rng), beta)


SINGLE_ROWS = Draw()
