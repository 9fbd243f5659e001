"""Whether the whole numbers among actions are those of the action space; Box parts are the action map's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rollax.spaces import bounds
from rollax.trees import Tree


class OutsideAction(NamedTuple):
    """An action that is not in the action space, with its row and the space that it should be of."""

    row: int
    got: Any
    space: spaces.Space


class ActionRanges:
    """Finds actions that are not in Discrete, MultiDiscrete and MultiBinary spaces, nested as they may be, in bulk.

    Args:
        action_space: of the actions.
    """

    def __init__(self, action_space: spaces.Space) -> None:
        self.space = action_space
        self._has_whole = _has_whole(action_space)

    def outside(self, actions: Tree) -> OutsideAction | None:
        """The first action that is outside; None where there is none.

        Args:
            actions: columns of actions.
        """
        return _outside(self.space, actions) if self._has_whole else None


def _has_whole(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_has_whole, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_has_whole, space.spaces))
    return not isinstance(space, spaces.Box)


def _outside(space: spaces.Space, actions: Any) -> OutsideAction | None:
    if isinstance(space, spaces.Dict):
        found = (_outside(part, actions[key]) for key, part in space.spaces.items())
        return next((outside for outside in found if outside is not None), None)
    if isinstance(space, spaces.Tuple):
        found = (_outside(*pair) for pair in zip(space.spaces, actions, strict=True))
        return next((outside for outside in found if outside is not None), None)
    if isinstance(space, spaces.Box):
        return None
    low, high = bounds(space)
    if actions.dtype.kind not in "iub" or actions.shape[1:] != space.shape:
        return OutsideAction(0, f"{actions.dtype} of shape {actions.shape[1:]}: {actions[0]!r}", space)
    wrong = (actions < low) | (actions > high)
    if not np.count_nonzero(wrong):
        return None
    row = int(np.argwhere(wrong)[0][0])
    return OutsideAction(row, actions[row], space)
