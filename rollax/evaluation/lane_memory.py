"""The last action and reward of each lane, for policies that take or read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax import spaces, trees
from rollax.batch import SampleBatch
from rollax.evaluation.policy_runner import PolicyRunner


class LaneMemory:
    """Keeps nothing where the policy wants nothing.

    Args:
        runner: the policy.
    """

    def __init__(self, runner: PolicyRunner) -> None:
        wanted = runner.columns or frozenset()
        self._stored = {name for name in (SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS) if name in wanted}
        self._takes_actions = runner.takes("prev_action_batch") or SampleBatch.PREV_ACTIONS in wanted
        self._takes_rewards = runner.takes("prev_reward_batch") or SampleBatch.PREV_REWARDS in wanted
        self._space = runner.policy.action_space
        self._actions: trees.Tree | None = None
        self._rewards = np.zeros(64, np.float32)

    def context(self, lanes: np.ndarray) -> dict[str, Any]:
        """The keyword arguments for `compute_actions`."""
        context: dict[str, Any] = {}
        if self._takes_actions:
            context["prev_action_batch"] = trees.index(self._room(lanes), lanes)
        if self._takes_rewards:
            self._room(lanes)
            context["prev_reward_batch"] = self._rewards[lanes]
        return context

    def columns(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """The columns to store."""
        if not self._stored:
            return {}
        names = {SampleBatch.PREV_ACTIONS: "prev_action_batch", SampleBatch.PREV_REWARDS: "prev_reward_batch"}
        return {name: context[names[name]] for name in self._stored}

    def remember(self, lanes: np.ndarray, actions: trees.Tree) -> None:
        """These actions are the last ones now; rewards count anew."""
        if self._takes_actions:
            trees.put(self._room(lanes), lanes, actions)
        if self._takes_rewards:
            self._rewards[lanes] = 0

    def reward(self, lanes: np.ndarray, rewards: np.ndarray, over: np.ndarray) -> None:
        """These rewards followed the last actions, of lives that go on where not `over`."""
        if self._takes_rewards:
            self._rewards[lanes] += np.where(over, 0.0, rewards)

    def forget(self, lanes: np.ndarray) -> None:
        """Lives begin on these lanes."""
        if len(lanes) and self._takes_actions:
            trees.tree_map(lambda leaf: leaf.__setitem__(lanes, 0), self._room(lanes))
        if len(lanes) and self._takes_rewards:
            self._room(lanes)
            self._rewards[lanes] = 0

    def _room(self, lanes: np.ndarray) -> trees.Tree:
        needed = int(lanes.max(initial=0)) + 1
        if self._actions is None or needed > len(self._rewards):
            size = max(64, 2 * needed)
            old, self._actions = self._actions, spaces.zeros(self._space, size)
            if old is not None:
                trees.copy_into(self._actions, 0, old)
            self._rewards = np.append(self._rewards, np.zeros(size - len(self._rewards), np.float32))
        return self._actions
