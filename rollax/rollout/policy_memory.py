"""A policy's memory between actions: recurrent state, previous action and reward, by slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import spaces, trees
from rollax.errors import PolicyError
from rollax.policy.recurrent_columns import ARGUMENT_OF
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.table import Table

Inputs = dict[str, trees.Tree]
"""Inputs of a policy: `obs`, and the stored parts of its memory."""
_STATE, _ACTION, _REWARD = SampleBatch.STATE_IN, SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS


def initial_memory(runner: PolicyRunner) -> tuple[Inputs, list[str]]:
    """The columns of a policy's memory: `(column -> initial value, names of the columns that batches store)`.

    A column is left out if the policy neither acts on it nor stores it; both results may be empty.
    """
    policy, wanted = runner.policy, runner.columns
    state = tuple(np.asarray(part) for part in policy.get_initial_state())
    stored = frozenset() if wanted is None else wanted
    taken = {name for name, argument in ARGUMENT_OF.items() if runner.takes(argument)}
    # A policy without `batch_columns` stores its state, because it cannot be recomputed; previous actions and rewards
    # are stored only if `compute_actions` has these arguments.
    if state and (wanted is None or SampleBatch.STATE_OUT in stored):
        stored |= {_STATE}
    if wanted is None:
        stored |= taken
    kept = taken | stored
    initial: Inputs = {}
    if state and _STATE in kept:
        initial[_STATE] = state
    if _ACTION in kept:
        initial[_ACTION] = trees.index(spaces.zeros(policy.action_space, 1), 0)
    if _REWARD in kept:
        initial[_REWARD] = np.zeros((), np.float32)
    return initial, [name for name in initial if name in stored]


class SlotMemory:
    """The columns of a slot table that one policy acts on or stores; possibly none.

    Args:
        runner: the policy.
        slots: the table; a column is added for each part of the memory, filled with its initial value.
    """

    def __init__(self, runner: PolicyRunner, slots: Table) -> None:
        initial, self._stored = initial_memory(runner)
        self._table, self._runner = slots, runner
        self._parts = {name: (runner.policy.name, name) for name in initial}  # -> the name of the table's column
        for name, column in self._parts.items():
            slots.add(column, initial[name])
        self.active = bool(initial)

    def context(self, slots: np.ndarray) -> dict[str, Any]:
        """The keyword arguments for `compute_actions`."""
        context = {ARGUMENT_OF[name]: trees.index(self._table[column], slots) for name, column in self._parts.items()}
        if _REWARD in self._parts:
            context[ARGUMENT_OF[_REWARD]] = self._runner.reward_map(context[ARGUMENT_OF[_REWARD]])
        return context

    def columns(self, context: dict[str, Any]) -> Inputs:
        """The columns to store, from the result of `context`."""
        return {name: context[ARGUMENT_OF[name]] for name in self._stored}

    def inputs(self, slots: np.ndarray) -> Inputs:
        """The stored inputs that these slots would act on now."""
        return self.columns(self.context(slots)) if self._stored else {}

    def remember(self, slots: np.ndarray, actions: trees.Tree, states: Any) -> None:
        """Stores the latest actions and states, and sets the rewards to 0; PolicyError for states of wrong shapes."""
        for name, column in self._parts.items():
            if name == _STATE:
                self._put_states(self._table[column], slots, states)
            elif name == _ACTION:
                trees.put(self._table[column], slots, self._runner.action_map.received(actions))
            else:
                self._table.clear_rows(column, slots)

    def reward(self, slots: np.ndarray, rewards: np.ndarray) -> None:
        """Adds the rewards of the latest actions."""
        if _REWARD in self._parts:
            self._table[self._parts[_REWARD]][slots] += rewards

    def begin(self, slots: np.ndarray) -> None:
        """Sets the slots of new trajectories to the initial memory."""
        for column in self._parts.values():
            self._table.clear_rows(column, slots)

    def _put_states(self, columns: tuple[np.ndarray, ...], slots: np.ndarray, states: Any) -> None:
        parts = [np.asarray(part) for part in states]
        shapes, expected = [part.shape for part in parts], [(len(slots), *column.shape[1:]) for column in columns]
        if shapes != expected:
            what = "The states that compute_actions returned do not have the shapes of the initial state."
            fix = "return one array [N, ...] for each part of get_initial_state()"
            raise PolicyError(what, self._runner.policy.label, shapes, expected=expected, fix=fix)
        pairs = [(part.dtype, column.dtype) for column, part in zip(columns, parts, strict=True)]
        if not all(np.can_cast(*pair, "same_kind") for pair in pairs):
            what = "The states that compute_actions returned cannot be stored in the dtypes of the initial state."
            got, expected = (list(map(str, dtypes)) for dtypes in zip(*pairs, strict=True))
            fix = "let get_initial_state() return parts of these dtypes, such as 0.0 instead of 0 for fractions"
            raise PolicyError(what, self._runner.policy.label, got, expected=expected, fix=fix)
        for column, part in zip(columns, parts, strict=True):
            column[slots] = part
