"""From a policy's actions to the environment's, and back: the bounds of Box action spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.errors import ShapeError
from rollax.trees import Tree


class ActionMap:
    """Maps columns of policy actions to columns that the environment accepts.

    Only Box leaves change; where the space has none, `identity` is true and the columns are returned as they are. A NaN
    stays one: the caller, which knows the policy and the step, refuses it.

    Args:
        action_space: the environment's action space, nested as it may be.
        clip_actions: clip every element to its bounds.
        normalize_actions: scale [-1, 1] to [low, high] in the elements that have both bounds, and clip them; other
            elements do not change.
    """

    def __init__(self, action_space: spaces.Space, *, clip_actions: bool, normalize_actions: bool) -> None:
        self._map = _leaf_maps(action_space, clip_actions, normalize_actions)
        self.identity = self._map is None

    def __call__(self, columns: Tree) -> Tree:
        """The environment's actions, in the dtypes of its space."""
        return columns if self._map is None else _apply("to_env", self._map, columns)

    def to_policy(self, columns: Tree) -> Tree:
        """The inverse, for actions from logs; float32 in Box leaves. It is linear beyond the bounds."""
        return columns if self._map is None else _apply("to_policy", self._map, columns)


class _BoxMap:
    def __init__(self, box: spaces.Box, clip: bool, normalize: bool) -> None:
        self.box = box
        self.integer = np.issubdtype(box.dtype, np.integer)
        low, high = box.low.astype(np.float64), box.high.astype(np.float64)
        self.scaled = box.bounded_below & box.bounded_above & normalize
        from_, to = np.where(self.scaled, low, -1.0), np.where(self.scaled, high, 1.0)
        # Halved before they are subtracted: the width of a float64 Box may overflow.
        self.half_width, self.centre = to / 2 - from_ / 2, to / 2 + from_ / 2
        # A cast to an integer outside its range is undefined, so integers are always clipped.
        cut = self.scaled | clip | self.integer
        self.low, self.high = np.where(cut, low, -np.inf), np.where(cut, high, np.inf)
        self.cuts = bool(cut.any())

    def to_env(self, actions: Any) -> NDArray:
        actions = self._checked(actions)
        if self.scaled.any():
            actions = self.centre + self.half_width * actions
        if self.integer and not np.issubdtype(actions.dtype, np.integer):
            actions = np.rint(actions)
        if self.cuts:
            actions = np.minimum(np.maximum(actions, self.low), self.high)
        return actions.astype(self.box.dtype, copy=False)

    def to_policy(self, actions: Any) -> NDArray[np.float32]:
        actions = self._checked(actions)
        if self.scaled.any():
            # Where low = high every action of the policy maps there; 0 is the middle one.
            width = np.where(self.half_width == 0, np.inf, self.half_width)
            actions = (actions - self.centre) / width
        return actions.astype(np.float32, copy=False)

    def _checked(self, actions: Any) -> NDArray:
        array = np.asarray(actions)
        if array.shape[1:] != self.box.shape or array.ndim == 0:
            raise ShapeError(
                "Actions of the wrong shape.",
                where="a Box of the action space",
                got=array.shape,
                expected=("N", *self.box.shape),
                fix="return one action per row, each with the shape of the space",
            )
        return array


def _leaf_maps(space: spaces.Space, clip: bool, normalize: bool) -> Any:
    """The map of every Box, in the space's own nesting; None for a part without any."""
    if isinstance(space, spaces.Box):
        return _BoxMap(space, clip, normalize)
    if isinstance(space, spaces.Dict):
        maps = {key: _leaf_maps(part, clip, normalize) for key, part in space.spaces.items()}
        return maps if any(part is not None for part in maps.values()) else None
    if isinstance(space, spaces.Tuple):
        parts = tuple(_leaf_maps(part, clip, normalize) for part in space.spaces)
        return parts if any(part is not None for part in parts) else None
    return None


def _apply(direction: str, maps: Any, columns: Tree) -> Tree:
    if maps is None:
        return columns
    if isinstance(maps, dict):
        return {key: _apply(direction, part, columns[key]) for key, part in maps.items()}
    if isinstance(maps, tuple):
        return tuple(_apply(direction, part, column) for part, column in zip(maps, columns, strict=True))
    return getattr(maps, direction)(columns)
