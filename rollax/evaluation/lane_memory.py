"""What a policy remembers from one decision of a lane to the next: recurrent state, last action and reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax import spaces, trees
from rollax.batch import SampleBatch
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.trajectories import Inputs

_STATE = "state_batches"
_COLUMN_OF = {
    _STATE: SampleBatch.STATE_IN,
    "prev_action_batch": SampleBatch.PREV_ACTIONS,
    "prev_reward_batch": SampleBatch.PREV_REWARDS,
}


class LaneMemory:
    """One row of memory for each lane, of the parts that the policy takes or stores; nothing where there are none.

    Args:
        runner: the policy.
    """

    def __init__(self, runner: PolicyRunner) -> None:
        wanted, state = runner.columns, [np.asarray(part) for part in runner.policy.get_initial_state()]
        stored = frozenset() if wanted is None else wanted
        # A policy that names no columns gets its state, which nobody could make anew, but not what costs and few read.
        if state and wanted is None:
            stored = frozenset({SampleBatch.STATE_IN})
        self._initial: dict[str, trees.Tree] = {}
        if state and (runner.takes(_STATE) or SampleBatch.STATE_IN in stored):
            self._initial[_STATE] = tuple(state)
        if runner.takes("prev_action_batch") or SampleBatch.PREV_ACTIONS in stored:
            self._initial["prev_action_batch"] = trees.index(spaces.zeros(runner.policy.action_space, 1), 0)
        if runner.takes("prev_reward_batch") or SampleBatch.PREV_REWARDS in stored:
            self._initial["prev_reward_batch"] = np.zeros((), np.float32)
        self._stored = [name for name in self._initial if _COLUMN_OF[name] in stored]
        self._lanes: dict[str, trees.Tree] = {}
        self._room = 0
        self.active = bool(self._initial)

    def context(self, lanes: np.ndarray) -> dict[str, Any]:
        """The keyword arguments for `compute_actions`."""
        if not self.active:
            return {}
        self._make_room(lanes)
        return {name: trees.index(column, lanes) for name, column in self._lanes.items()}

    def columns(self, context: dict[str, Any]) -> Inputs:
        """The columns to store, out of what `context` returned."""
        return {_COLUMN_OF[name]: context[name] for name in self._stored}

    def inputs(self, lanes: np.ndarray) -> Inputs:
        """What these lanes would act on now, as far as it is stored."""
        return self.columns(self.context(lanes)) if self._stored else {}

    def remember(self, lanes: np.ndarray, actions: trees.Tree, states: Any) -> None:
        """These actions and states are the last ones now; rewards count anew."""
        if not self.active:
            return
        self._make_room(lanes)
        new: dict[str, trees.Tree] = {_STATE: tuple(states), "prev_action_batch": actions, "prev_reward_batch": 0.0}
        for name, column in self._lanes.items():
            if name == "prev_reward_batch":
                column[lanes] = 0.0
            else:
                trees.put(column, lanes, new[name])

    def reward(self, lanes: np.ndarray, rewards: np.ndarray) -> None:
        """These rewards followed the last actions."""
        if "prev_reward_batch" in self._initial:
            self._make_room(lanes)
            self._lanes["prev_reward_batch"][lanes] += rewards

    def forget(self, lanes: np.ndarray) -> None:
        """Lives begin on these lanes."""
        if self.active and len(lanes):
            self._make_room(lanes)
            trees.tree_map(lambda leaf, first: leaf.__setitem__(lanes, first), self._lanes, self._initial)

    def _make_room(self, lanes: np.ndarray) -> None:
        needed = int(lanes.max(initial=0)) + 1
        if needed > self._room:
            size = max(64, 2 * needed)
            grown = trees.tree_map(lambda leaf: np.repeat(np.asarray(leaf)[None], size, axis=0), self._initial)
            if self._lanes:
                trees.copy_into(grown, 0, self._lanes)
            self._lanes, self._room = grown, size
