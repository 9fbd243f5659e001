"""The table of slots: trajectory, policy, rewards so far, and a policy's memory between actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import spaces, trees
from rollax.env.rows import Rows
from rollax.errors import PolicyError
from rollax.policy.recurrent_columns import ARGUMENT_OF
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.table import Table
from rollax.rollout.trajectories import Inputs

_STATE, _ACTION, _REWARD = SampleBatch.STATE_IN, SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS


class SlotTable(Table):
    """One row per slot. The parts of a sampler add columns of their own.

    The columns are `trajectory`, an id that is unique across workers and time; `policy`, an index into `policy_ids`;
    and `reward`, the sum of the trajectory's rewards so far. `policy_of` is as for a `Sampler`.
    """

    def __init__(self, policy_ids: Sequence[str], policy_of: Callable[..., str] | None) -> None:
        super().__init__(trajectory=0, policy=0, reward=0.0)
        self._ids, self._policy_of = list(policy_ids), policy_of

    def begin(self, rows: Rows, starting: np.ndarray, first: int, episodes: EpisodeTable) -> None:
        """Begins a trajectory in the slot of each of the [K] starting rows, with ids from `first` on."""
        slots = rows.slots[starting]
        self["trajectory"][slots] = np.arange(first, first + len(slots))
        self["reward"][slots] = 0.0
        if self._policy_of is not None:
            self["policy"][slots] = [self._choose(rows, row, episodes) for row in starting.tolist()]

    def _choose(self, rows: Rows, row: int, episodes: EpisodeTable) -> int:
        episode, agent = episodes.episode(int(rows.env_index[row])), rows.agent_of(row)
        policy_id = episode.policies.get(agent)
        if policy_id is None:
            assert self._policy_of is not None
            policy_id = episode.policies[agent] = self._policy_of(agent, episode)
        return self._ids.index(policy_id)


def initial_memory(runner: PolicyRunner) -> tuple[Inputs, list[str]]:
    """`(column -> its row at the start of a trajectory, the columns that batches store)` of a policy's memory.

    The policy acts on these columns or stores them; there may be none.
    """
    policy, wanted = runner.policy, runner.columns
    state = tuple(np.asarray(part) for part in policy.get_initial_state())
    stored = frozenset() if wanted is None else wanted
    # For a policy without `batch_columns`, its state is stored, because it cannot be recomputed; previous actions and
    # rewards are stored only if `compute_actions` has these arguments.
    if state and (wanted is None or SampleBatch.STATE_OUT in stored):
        stored |= {_STATE}
    if wanted is None and policy.arguments is not None:
        stored |= {name for name, argument in ARGUMENT_OF.items() if argument in policy.arguments}
    kept = {name for name, argument in ARGUMENT_OF.items() if runner.takes(argument) or name in stored}
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
            context[ARGUMENT_OF[_REWARD]] = self._runner.clipped(context[ARGUMENT_OF[_REWARD]])
        return context

    def columns(self, context: dict[str, Any]) -> Inputs:
        """The columns to store, from the result of `context`."""
        return {name: context[ARGUMENT_OF[name]] for name in self._stored}

    def inputs(self, slots: np.ndarray) -> Inputs:
        """The stored inputs that these slots would act on now."""
        return self.columns(self.context(slots)) if self._stored else {}

    def remember(self, slots: np.ndarray, actions: trees.Tree, states: Any) -> None:
        """Stores the latest actions and states, and starts new sums of rewards; PolicyError for other states."""
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
            raise PolicyError(
                "The states that compute_actions returned do not have the shapes of the initial state.",
                self._runner.policy.label,
                shapes,
            ).expected(expected, "return one array [N, ...] for each part of get_initial_state()")
        for column, part in zip(columns, parts, strict=True):
            column[slots] = part
