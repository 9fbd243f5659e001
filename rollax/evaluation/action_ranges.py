"""Checks that actions are in Discrete, MultiDiscrete and MultiBinary spaces; the action map handles Boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from rollax.spaces import at, bounds, leaves
from rollax.trees import Tree


class OutsideAction(NamedTuple):
    """An action outside the action space: its row, and the leaf of the space that does not contain it."""

    row: int
    got: object
    space: spaces.Space


class ActionRanges:
    """Finds actions outside Discrete, MultiDiscrete and MultiBinary spaces, nested or not, in bulk.

    Args:
        action_space: of the actions.
    """

    def __init__(self, action_space: spaces.Space) -> None:
        self.space = action_space
        self._whole = [
            (path, leaf, bounds(leaf)) for path, leaf in leaves(action_space) if not isinstance(leaf, spaces.Box)
        ]

    def outside(self, actions: Tree) -> OutsideAction | None:
        """The first action outside the space, or None.

        Args:
            actions: columns of actions.
        """
        for path, leaf, (low, high) in self._whole:
            column = at(actions, path)
            if column.dtype.kind not in "iub" or column.shape[1:] != leaf.shape:
                return OutsideAction(0, f"{column.dtype} of shape {column.shape[1:]}: {column[0]!r}", leaf)
            wrong = (column < low) | (column > high)
            if np.count_nonzero(wrong):
                row = int(np.argwhere(wrong)[0][0])
                return OutsideAction(row, column[row], leaf)
        return None
