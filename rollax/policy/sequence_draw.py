"""`SequenceDraw`: draws sequences of rows from a replay buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollax.batch import SampleBatch
from rollax.config.replay_groups import OF_SEQUENCES
from rollax.errors import ConfigError
from rollax.policy.replayed import SINGLE_ROWS, Draw

if TYPE_CHECKING:
    from rollax.config.replay_groups import BurnInFields
    from rollax.policy.recurrent_columns import RecurrentColumns
    from rollax.replay.replay import Replay


@dataclass(frozen=True)
class SequenceDraw(Draw):
    """Sequences of consecutive rows of a trajectory, for models with memory or for losses over several steps.

    Each trajectory is divided into sequences of `length` rows that begin every `length - overlap` rows: a trajectory of
    at most `length - overlap` rows is a single sequence, a longer one has several. A sequence is drawn by one of
    its first `length - overlap` rows, which share its priority; `Replay.sequences` describes the batch.

    Source: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning" (R2D2),
        section 2.3: stored states, burn-in and overlap. Deviations: the first rows of a trajectory are learned from
        too, with fewer burn-in rows or none; the last sequence of a trajectory may be shorter.

    Args:
        length: T, the number of rows of a sequence to learn from; a sequence has fewer rows if the trajectory ends, or
            if some of its rows are not stored yet, or are overwritten.
        burn_in: the number of rows before a sequence that only advance the recurrent state, without a gradient.
        overlap: the number of rows that a sequence has in common with the next sequence.
        columns: as for `Draw`; with `state_in`, a sequence begins with the state in which the policy acted, otherwise
            with the initial state.
    Raises:
        ConfigError: a number is out of range.
    """

    length: int
    burn_in: int = 0
    overlap: int = 0

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("length", self.length >= 1, "at least 1"),
            ("burn_in", self.burn_in >= 0, "at least 0"),
            ("overlap", 0 <= self.overlap < self.length, "from 0 to length - 1"),
        ):
            if not fits:
                raise ConfigError.out_of_range(name, f"SequenceDraw({name}=...)", getattr(self, name), expected)

    @property
    def sequence_length(self) -> int:
        return self.length

    def units(self, rows: int) -> int:
        return max(rows // self.length, 1)

    def draw(self, replay: Replay, count: int, rng: np.random.Generator, beta: float) -> SampleBatch:
        return replay.sequences(replay.draw_slots(count, rng), self, beta)


def draw_for(memory: RecurrentColumns, config: BurnInFields, *, stored_state: bool) -> Draw:
    """Returns a draw of single transitions, or of sequences of `max_seq_len` rows for a model with memory.

    Args:
        memory: describes the model.
        config: its `burn_in` is the number of rows before a sequence that only advance the recurrent state. `overlap`,
            if it has this field, is the number of rows that a sequence has in common with the next sequence.
        stored_state: whether a sequence begins with the state in which the policy acted, or with the initial state.
    Raises:
        ConfigError: a key of sequences is set for a model without memory.
    """
    if memory.present:
        columns = tuple(name for name in memory.columns if stored_state or name != SampleBatch.STATE_IN)
        return SequenceDraw(memory.max_seq_len, config.burn_in, getattr(config, "overlap", 0), columns=columns)
    fields = type(config).model_fields
    for key in OF_SEQUENCES:
        if key in fields and getattr(config, key) != fields[key].default:
            raise ConfigError(
                f"{key} is for sequences, but the model has no memory and learns from single rows.",
                f"config key '{key}'",
                getattr(config, key),
            ).expected("the default, or a model with memory", f"leave {key} out, or use a model with memory")
    return SINGLE_ROWS
