"""What a policy learns from if its experience is replayed: transitions, or sequences of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollax.batch import SampleBatch

_IN_BOTH = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.DISCOUNTS, SampleBatch.WEIGHTS)
TRANSITION = (*_IN_BOTH, SampleBatch.NEW_OBS)
"""The columns of transitions, single rows of a replay buffer."""
TRANSITION_SAMPLED = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TRAJECTORY_ID)
"""The sampled columns that transitions are computed from, which every replay buffer stores."""
SEQUENCE = (*_IN_BOTH, SampleBatch.TARGET_STEPS)
"""The columns of sequences from a replay buffer; `target_steps` leads to the later row whose value is bootstrapped."""


def transitions_or_sequences(batch: SampleBatch) -> dict[str, Any]:
    """The columns of rows from a replay buffer, in the form in which it stores them."""
    return {name: batch[name] for name in (SEQUENCE if SampleBatch.TARGET_STEPS in batch else TRANSITION)}


@dataclass(frozen=True, slots=True)
class ReplayedSequences:
    """The sequences that a policy learns from if its experience is replayed."""

    length: int  # T, rows of each sequence to learn from
    burn_in: int = 0  # rows before these
    columns: tuple[str, ...] = ()  # columns of the buffer in addition to the columns of transitions
