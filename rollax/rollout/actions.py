"""Maps policy actions to environment actions, and rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.core import trees
from rollax.core.spaces import Path, at, leaves, walk
from rollax.core.trees import Tree, namespace
from rollax.errors import ShapeError


class ActionMap:
    """Maps columns of policy actions to columns that the environment accepts.

    Box leaves are scaled and clipped. Discrete and MultiDiscrete leaves are cast if their dtype cannot hold int32. All
    other leaves are copied; `identity` is true if the space has only such leaves. The result shares no memory with the
    policy's actions, because an environment may write into the actions that it receives. NaNs are not checked here:
    `PolicyRunner.check_actions` refuses them.

    Args:
        action_space: the environment's action space, nested or not.
        clip_actions: clip every element to its bounds; elements of integer Boxes are always clipped.
        normalize_actions: scale [-1, 1] to [low, high] in the elements that have both bounds, and clip them; other
            elements do not change.
    """

    def __init__(self, action_space: spaces.Space, *, clip_actions: bool, normalize_actions: bool) -> None:
        boxes = ((path, leaf) for path, leaf in leaves(action_space) if isinstance(leaf, spaces.Box))
        self.boxes = {path: BoxMap(leaf, clip_actions, normalize_actions) for path, leaf in boxes}
        self._space = action_space
        self.settings = {"clip_actions": clip_actions, "normalize_actions": normalize_actions}
        # Distributions return int32, which `space.contains` refuses if the dtype of the space cannot hold it.
        self._narrow = frozenset(
            path
            for path, leaf in leaves(action_space)
            if isinstance(leaf, spaces.MultiDiscrete | spaces.Discrete) and not np.can_cast(np.int32, leaf.dtype)
        )
        self.identity = not self.boxes and not self._narrow

    @property
    def log_width(self) -> float:
        """log |∂a_env / ∂a|, the constant in log p(a) = log p(a_env) + log |∂a_env / ∂a|."""
        widths = [box.half_width[box.scaled & (box.half_width > 0)] for box in self.boxes.values()]
        return float(sum(np.log(width).sum() for width in widths))

    def __call__(self, columns: Tree) -> Tree:
        """The environment's actions, in the dtypes of its space; columns in JAX have at most 32 bits.

        Results in NumPy are writable copies.
        """
        if self.identity:
            return trees.copied(columns)

        def to_env(leaf: spaces.Space, path: Path, column: Any) -> Any:
            if path in self.boxes:
                return self.boxes[path].to_env(column)
            return column.astype(leaf.dtype) if path in self._narrow else trees.copied(column)

        return walk(to_env, self._space, columns)

    def to_policy(self, columns: Tree) -> Tree:
        """The policy's actions for logged environment actions: float32 in Box leaves, without clipping."""

        def to_policy(_: spaces.Space, path: Path, column: Any) -> Any:
            return self.boxes[path].to_policy(column) if path in self.boxes else column

        return columns if self.identity else walk(to_policy, self._space, columns)

    def on_bound(self, columns: Tree) -> NDArray[np.bool_]:
        """[N] whether an element of the environment's actions lies on a bound that actions are clipped to."""
        found: Any = False
        for path, box in self.boxes.items():
            column = np.asarray(at(columns, path))
            hits = (column == box.low) | (column == box.high)
            found = found | hits.reshape(len(column), -1).any(axis=1)
        return np.broadcast_to(found, trees.length(columns))

    def received(self, columns: Tree) -> Tree:
        """The clipped and rounded actions that the environment receives, but in the scale of the policy."""
        return self.to_policy(self(columns)) if self.boxes else columns


class BoxMap:
    """Maps the actions of one Box leaf.

    Attributes:
        scaled: mask of the elements that are scaled, by `half_width` and `centre`.
        cuts: whether any element is clipped to [`low`, `high`].
        integer: whether results are rounded before they are clipped.
    """

    def __init__(self, box: spaces.Box, clip: bool, normalize: bool) -> None:
        self.box = box
        self.integer = np.issubdtype(box.dtype, np.integer)
        low, high = box.low.astype(np.float64), box.high.astype(np.float64)
        self.scaled = box.bounded_below & box.bounded_above & normalize
        from_, to = np.where(self.scaled, low, -1.0), np.where(self.scaled, high, 1.0)
        # Halved before they are subtracted: the width of a float64 Box may overflow.
        self.half_width, self.centre = to / 2 - from_ / 2, to / 2 + from_ / 2
        # Casting a float beyond the range of an integer dtype is undefined, so integers are always clipped.
        cut = self.scaled | clip | self.integer
        self.low, self.high = np.where(cut, low, -np.inf), np.where(cut, high, np.inf)
        self.cuts = bool(cut.any())

    def to_env(self, actions: Any) -> Any:
        actions = self._checked(actions)
        xp = namespace(actions)
        if self.scaled.any():
            actions = self.centre + self.half_width * actions
        if self.integer and not np.issubdtype(actions.dtype, np.integer):
            actions = xp.rint(actions)
        if self.cuts:
            actions = xp.minimum(xp.maximum(actions, self.low), self.high)
        return actions.astype(self.box.dtype)

    def to_policy(self, actions: Any) -> NDArray[np.float32]:
        actions = self._checked(actions)
        if self.scaled.any():
            # Where low = high, all actions of the policy map to this bound; 0 is their middle.
            width = np.where(self.half_width == 0, np.inf, self.half_width)
            actions = (actions - self.centre) / width
        return actions.astype(np.float32, copy=False)

    def _checked(self, actions: Any) -> Any:
        array = actions if hasattr(actions, "__array_namespace__") else np.asarray(actions)
        if array.shape[1:] != self.box.shape or array.ndim == 0:
            raise ShapeError.wrong_shape(
                "The actions have", "a Box of the action space", array.shape, ("N", *self.box.shape)
            ).fix("return one action per row, each with the shape of the space")
        return array


class RewardMap:
    """Maps rewards, in NumPy or JAX, to the rewards that a policy acts on and learns from.

    Args:
        clip_rewards: True keeps only the signs, a number bounds rewards to ± this number; None or False: no change.
    """

    def __init__(self, clip_rewards: bool | float | None) -> None:
        self.clip_rewards = clip_rewards
        self.settings = {"clip_rewards": clip_rewards}

    def __call__(self, rewards: Any) -> Any:
        bound = self.clip_rewards
        if not bound:
            return rewards
        xp = namespace(rewards)
        return xp.sign(rewards) if bound is True else xp.clip(rewards, -bound, bound)
