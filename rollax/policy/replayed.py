"""What a policy learns from if its experience is replayed: transitions, or sequences of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollax.batch import SampleBatch

TRANSITION = frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TRAJECTORY_ID})
"""The columns that sampling fills for algorithms with a replay buffer."""


def transitions(batch: SampleBatch, valued: str = SampleBatch.NEW_OBS) -> dict[str, Any]:
    """The columns of replayed transitions; `valued` names the column to bootstrap from."""
    names = (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.DISCOUNTS, SampleBatch.WEIGHTS)
    return {name: batch[name] for name in (*names, valued)}


@dataclass(frozen=True, slots=True)
class ReplayedSequences:
    """The sequences that a policy learns from if its experience is replayed."""

    length: int  # T, rows of each sequence to learn from
    burn_in: int = 0  # rows before those
    columns: tuple[str, ...] = ()  # columns of the buffer in addition to those of transitions
