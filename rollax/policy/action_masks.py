"""Action masks, checked before they reach the compiled function."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax import trees
from rollax.errors import EnvError
from rollax.spaces import choices

KEY = "action_mask"
"""The key of a Dict observation that says which actions are valid."""


class ActionMasks:
    """Refuses a mask that allows nothing; nothing to do where observations bring none.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.present = isinstance(observation_space, spaces.Dict) and KEY in observation_space.spaces
        counts = choices(action_space)
        self._width = sum(counts)
        # Where the entries of each discrete action begin in a mask.
        self._starts = np.cumsum([0, *counts])[:-1]

    def check(self, obs: Any, where: str) -> None:
        """Raises EnvError where an observation allows no action."""
        if not self.present:
            return
        mask = obs[KEY]
        if mask.shape[1:] != (self._width,) or not len(self._starts):
            return  # the distribution says so while it is traced
        allowed = np.logical_or.reduceat(mask, self._starts, axis=1)
        if not allowed.all():
            row, action = np.argwhere(~allowed)[0].tolist()
            several = f", discrete action {action} of {len(self._starts)}" if len(self._starts) > 1 else ""
            raise EnvError(
                "An action mask that allows nothing.",
                where=f"{where}, row {row} of {len(mask)}{several}",
                got="all zeros",
                expected="at least one 1",
                fix="leave one action valid, or end the episode instead of asking for an action",
            )


class GroupMasks:
    """Refuses a member that is there and whose mask allows nothing.

    A member that is not there shows zeros, a mask of zeros among them. Where a filter changes the zeros, only a group
    of which nobody may do anything is refused.

    Args:
        present: whether observations bring masks.
        filtered: whether a filter may have changed what else is observed.
    """

    def __init__(self, present: bool, *, filtered: bool) -> None:
        self.present, self._filtered = present, filtered

    def check(self, obs: Any, where: str) -> None:
        """Raises EnvError for the first member that is there and may do nothing.

        Args:
            obs: columns of the group's observations.
            where: whose.
        """
        if not self.present:
            return
        nothing = np.stack([~member[KEY].any(axis=1) for member in obs], axis=1)
        if not nothing.any():
            return
        wrong = nothing & nothing.all(axis=1, keepdims=True)
        if not self._filtered:
            wrong |= nothing & np.stack([_shows_something(member) for member in obs], axis=1)
        if wrong.any():
            row, member = np.argwhere(wrong)[0].tolist()
            raise EnvError(
                "An action mask that allows nothing.",
                where=f"{where}, row {row} of {len(nothing)}, member {member} of {len(obs)}",
                got="all zeros",
                expected="at least one 1, for a member that is there",
                fix="leave one action valid, or end the member's trajectory; one that is not there is all zeros",
            )


def _shows_something(member: Any) -> np.ndarray:
    """[B] whether anything in a row of its columns is not 0."""
    leaves = [leaf.reshape(len(leaf), -1).any(axis=1) for leaf in trees.leaves(member)]
    return np.logical_or.reduce(leaves)
