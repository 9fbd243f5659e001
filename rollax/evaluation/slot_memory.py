"""What a policy remembers from one decision of a slot to the next: recurrent state, last action and reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax import spaces, trees
from rollax.batch import SampleBatch
from rollax.errors import PolicyError
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.trajectories import Inputs

_STATE, _ACTION, _REWARD = "state_batches", "prev_action_batch", "prev_reward_batch"
_COLUMN_OF = {
    _STATE: SampleBatch.STATE_IN,
    _ACTION: SampleBatch.PREV_ACTIONS,
    _REWARD: SampleBatch.PREV_REWARDS,
}


class SlotMemory:
    """One row of memory for each slot, of the parts that the policy takes or stores; nothing where there are none.

    Args:
        runner: the policy.
    """

    def __init__(self, runner: PolicyRunner) -> None:
        wanted, state = runner.columns, [np.asarray(part) for part in runner.policy.get_initial_state()]
        stored = frozenset() if wanted is None else wanted
        # A policy that names no columns gets its state, which nobody could make anew, but not what costs and few read.
        if state and (wanted is None or SampleBatch.STATE_OUT in stored):
            stored |= {SampleBatch.STATE_IN}
        kept = {name for name, column in _COLUMN_OF.items() if runner.takes(name) or column in stored}
        self._initial: dict[str, trees.Tree] = {}
        if state and _STATE in kept:
            self._initial[_STATE] = tuple(state)
        if _ACTION in kept:
            self._initial[_ACTION] = trees.index(spaces.zeros(runner.policy.action_space, 1), 0)
        if _REWARD in kept:
            self._initial[_REWARD] = np.zeros((), np.float32)
        self._stored = [name for name in self._initial if _COLUMN_OF[name] in stored]
        self._runner = runner
        self._slots: dict[str, trees.Tree] = {}
        self._room = 0
        self.active = bool(self._initial)

    def context(self, slots: np.ndarray) -> dict[str, Any]:
        """The keyword arguments for `compute_actions`."""
        if not self.active:
            return {}
        self._make_room(slots)
        context = {name: trees.index(column, slots) for name, column in self._slots.items()}
        if _REWARD in context:
            context[_REWARD] = self._runner.clipped(context[_REWARD])
        return context

    def columns(self, context: dict[str, Any]) -> Inputs:
        """The columns to store, out of what `context` returned."""
        return {_COLUMN_OF[name]: context[name] for name in self._stored}

    def inputs(self, slots: np.ndarray) -> Inputs:
        """What these slots would act on now, as far as it is stored."""
        return self.columns(self.context(slots)) if self._stored else {}

    def remember(self, slots: np.ndarray, actions: trees.Tree, states: Any) -> None:
        """These actions and states are the last ones now; rewards count anew.

        Raises:
            PolicyError: the states are not like the initial ones.
        """
        for name, column in self._slots.items():
            if name == _STATE:
                self._put_states(column, slots, states)
            elif name == _ACTION:
                trees.put(column, slots, actions)
            else:
                column[slots] = 0.0

    def reward(self, slots: np.ndarray, rewards: np.ndarray) -> None:
        """These rewards followed the last actions."""
        if _REWARD in self._slots:
            self._slots[_REWARD][slots] += rewards

    def forget(self, slots: np.ndarray) -> None:
        """Trajectories begin on these slots."""
        if self.active and len(slots):
            self._make_room(slots)
            trees.tree_map(lambda leaf, first: leaf.__setitem__(slots, first), self._slots, self._initial)

    def _put_states(self, columns: tuple[np.ndarray, ...], slots: np.ndarray, states: Any) -> None:
        parts = [np.asarray(part) for part in states]
        shapes, expected = [part.shape for part in parts], [(len(slots), *column.shape[1:]) for column in columns]
        if shapes != expected:
            raise PolicyError(
                "compute_actions returned states that are not like the initial state.",
                where=f"policy {self._runner.policy.name!r}, class {type(self._runner.policy).__name__}",
                got=shapes,
                expected=expected,
                fix="return one array [N, ...] for each part of get_initial_state()",
            )
        for column, part in zip(columns, parts, strict=True):
            column[slots] = part

    def _make_room(self, slots: np.ndarray) -> None:
        needed = int(slots.max(initial=0)) + 1
        if needed > self._room:
            size = max(64, 2 * needed)
            grown = trees.tree_map(lambda leaf: np.repeat(np.asarray(leaf)[None], size, axis=0), self._initial)
            if self._slots:
                trees.copy_into(grown, 0, self._slots)
            self._slots, self._room = grown, size
