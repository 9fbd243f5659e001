"""`RecurrentColumns`: the columns of a model's memory for acting, and sequences of rows for learning, without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.batch import Columns, Fragment, SampleBatch
from rollax.batch.columns import PER_SEQUENCE
from rollax.core import trees
from rollax.core.spaces import zeros
from rollax.errors import PolicyError
from rollax.models.outputs import initial_state_of, is_recurrent

ARGUMENT_OF = {
    SampleBatch.STATE_IN: "state_batches",
    SampleBatch.PREV_ACTIONS: "prev_action_batch",
    SampleBatch.PREV_REWARDS: "prev_reward_batch",
}
"""Column of a memory -> the argument of `compute_actions` for this column."""
_TRAJECTORY = (
    SampleBatch.EPS_ID,
    SampleBatch.TRAJECTORY_ID,
    SampleBatch.AGENT_ID,
    SampleBatch.T,
    SampleBatch.TERMINATEDS,
    SampleBatch.TRUNCATEDS,
)


class RecurrentColumns:
    """Describes the memory of a model, if it has one; `max_seq_len` is the length of sequences to learn from.

    `columns` are the model's inputs besides `obs`: `state_in`, and the model's `memory_inputs`.
    """

    def __init__(self, model: Any, action_space: Space, max_seq_len: int) -> None:
        self.present = is_recurrent(model)
        self.max_seq_len = max_seq_len if self.present else 1
        self.initial_state = initial_state_of(model)
        inputs: tuple[str, ...] = getattr(model, "memory_inputs", ())
        self.columns = (SampleBatch.STATE_IN, *inputs) if self.present else ()
        self._action_space = action_space

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments of `compute_actions` that belong to the memory."""
        return frozenset(ARGUMENT_OF[name] for name in self.columns)

    @property
    def batch_columns(self) -> frozenset[str]:
        """The columns of a batch that learning from sequences needs."""
        return frozenset((*self.columns, SampleBatch.TRAJECTORY_ID)) if self.present else frozenset()

    def given(self, rows: int, states: Sequence[Any], prev_actions: Any, prev_rewards: Any, where: str) -> Columns:
        """The columns for acting, by default those of a trajectory's first step; PolicyError for wrong shapes."""
        if not len(states):
            states = [np.broadcast_to(part, (rows, *part.shape)) for part in self.initial_state]
        state_in = tuple(np.asarray(part) for part in states)
        shapes = [(rows, *part.shape) for part in self.initial_state]
        if [part.shape for part in state_in] != shapes:
            raise PolicyError(
                "The recurrent state has the wrong shape.",
                where=f"{where}, state_batches of compute_actions",
                got=[part.shape for part in state_in],
                expected=shapes,
                fix="pass the state_outs of the previous step, or nothing at the start of a trajectory",
            )
        columns: dict[str, Any] = {SampleBatch.STATE_IN: state_in}
        if SampleBatch.PREV_ACTIONS in self.columns:
            is_first = prev_actions is None
            columns[SampleBatch.PREV_ACTIONS] = zeros(self._action_space, rows) if is_first else prev_actions
        if SampleBatch.PREV_REWARDS in self.columns:
            rewards = np.zeros(rows, np.float32) if prev_rewards is None else prev_rewards
            columns[SampleBatch.PREV_REWARDS] = np.asarray(rewards, np.float32)
        self._check_previous(columns, rows, where)
        return columns

    def _check_previous(self, columns: Columns, rows: int, where: str) -> None:
        """Raises PolicyError unless previous actions and rewards have N rows: padding would hide missing ones."""
        for name in (SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS):
            shapes = [np.shape(leaf) for leaf in trees.leaves(columns.get(name, ()))]
            numbers = name == SampleBatch.PREV_REWARDS
            if any((shape if numbers else shape[:1]) != (rows,) for shape in shapes):
                raise PolicyError(
                    "The previous actions or rewards do not fit the observations.",
                    where=f"{where}, {ARGUMENT_OF[name]} of compute_actions",
                    got=f"shapes {shapes}",
                    expected=f"{rows} rows, one for each observation",
                    fix="pass those of the previous step, or nothing at the start of a trajectory",
                )

    def of(self, stored: Columns) -> Columns:
        """The stored columns that are inputs of the model's memory."""
        return self.without_noise({name: stored[name] for name in self.columns})

    def without_noise(self, columns: Columns) -> Columns:
        """The columns with only the model's state in `state_in`, to which a policy may append its exploration state."""
        if not self.present:
            return columns
        return {**columns, SampleBatch.STATE_IN: columns[SampleBatch.STATE_IN][: len(self.initial_state)]}

    def check(self, memory: Columns, where: str) -> None:
        """Raises PolicyError if the model has memory and its columns are missing, but not if there is `critic_obs`."""
        missing = [name for name in self.columns if name not in memory]
        if missing and SampleBatch.CRITIC_OBS not in memory:
            raise PolicyError(
                "The value of an observation depends on the memory, which is not given.",
                where=f"{where}, compute_values",
                got=f"observations only, without {missing}" if memory else "observations only",
                expected=f"memory with {sorted(self.columns)}",
                fix="pass the memory too: compute_values(fragment.after['obs'], fragment.after)",
            )

    def sequences(self, columns: Columns, batch: SampleBatch, length: int) -> tuple[dict[str, Any], int]:
        """`(columns, S)`: the loss's columns [N, ...] as [S, length, ...], with `seq_lens` and `state_in`.

        The sequences of a padded batch are kept; without `state_in` they begin with the initial state.
        """
        if batch.seq_lens is not None:
            return self._as_padded(columns, batch), len(batch.seq_lens)
        memory = {SampleBatch.STATE_IN: (), **self.of(batch)}
        bounds = {name: batch[name] for name in _TRAJECTORY if name in batch}
        read = {**columns, **memory, **bounds}
        rows = Fragment(read, batch.ends, {}) if isinstance(batch, Fragment) else SampleBatch(read)
        padded = rows.sequences(length)
        cut = partial(_by_sequence, length=length)
        sequences = {
            name: column if name in PER_SEQUENCE else trees.tree_map(cut, column)
            for name, column in padded.items()
            if name in columns or name in memory or name == SampleBatch.SEQ_LENS
        }
        return sequences, len(padded[SampleBatch.SEQ_LENS])

    def _as_padded(self, columns: Columns, batch: SampleBatch) -> dict[str, Any]:
        cut = partial(_by_sequence, length=batch.max_seq_len)
        inputs = {name: batch[name] for name in self.columns if name != SampleBatch.STATE_IN}
        lengths = batch[SampleBatch.SEQ_LENS]
        initial = tuple(np.repeat(part[None], len(lengths), axis=0) for part in self.initial_state)
        burn_in = {name: batch[name] for name in (SampleBatch.BURN_IN,) if name in batch}
        return {
            **{name: trees.tree_map(cut, column) for name, column in {**columns, **inputs}.items()},
            **burn_in,
            SampleBatch.SEQ_LENS: lengths,
            SampleBatch.STATE_IN: batch.get(SampleBatch.STATE_IN, initial)[: len(initial)],
        }


def _by_sequence(leaf: np.ndarray, length: int) -> np.ndarray:
    return leaf.reshape(-1, length, *leaf.shape[1:])
