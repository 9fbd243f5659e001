"""Stacks of the latest observations, and their space. A stack has the structure of one observation:

| part of an observation | of a stack of k |
| --- | --- |
| Box `[n]` or `[]` | `[k · n]` or `[k]` |
| Box `[height, width, channels]`, or with channels first | k times as many channels |
| uint8 Box `[height, width]` | `[height, width, k]` |
| uint8 Box `[m, height, width, channels]`, a stack of m images | `[k · m, height, width, channels]` |
| any other Box, MultiDiscrete or MultiBinary | k times as long along its last axis |
| Discrete | MultiDiscrete `[k]` |
| `action_mask` and `avail_actions` | as in the latest observation |

The oldest observation is first. A trajectory begins with k copies of its first observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core import trees
from rollax.core.spaces import NOT_FEATURES, Path, channels_come_first, walk
from rollax.errors import SpaceError


def stacked_space(space: Space, count: int) -> Space:
    """The space of stacks of `count` observations.

    Raises:
        SpaceError: the shape of a stack of images would not tell which axis has the channels.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict(
            {key: part if key in NOT_FEATURES else stacked_space(part, count) for key, part in space.spaces.items()}
        )
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([stacked_space(part, count) for part in space.spaces])
    begin = _Axis.of(space, count).begin
    if isinstance(space, spaces.Box):
        low = begin(space.low)
        if len(space.shape) == low.ndim == 3 and channels_come_first(low.shape) != channels_come_first(space.shape):
            raise SpaceError(
                "A stack of images that are not square has so many channels that another axis would be taken for them.",
                "config key 'frame_stack'",
                f"{count} images of shape {space.shape}, which make stacks of shape {low.shape}",
            ).expected("fewer images, or square ones", "lower frame_stack, or pad the images to squares")
        return spaces.Box(low, begin(space.high), dtype=space.dtype.type)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(begin(np.empty(space.shape)).shape)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return spaces.MultiDiscrete(begin(np.asarray(sizes)), space.dtype.type, start=begin(np.asarray(space.start)))


def begun(space: Space, count: int, obs: trees.Tree) -> trees.Tree:
    """Stacks at the start of trajectories; each stack holds `count` copies of one observation.

    Args:
        space: of one observation.
        obs: single observations or columns, in NumPy or JAX.
    """
    return _of_features(_Axis.begin, space, count, obs)


def pushed(space: Space, count: int, stacks: trees.Tree, obs: trees.Tree) -> trees.Tree:
    """The stacks with `obs` as their latest observation, without their oldest one; arguments as `begun`."""
    return _of_features(_Axis.push, space, count, stacks, obs)


def latest(space: Space, count: int, stacks: trees.Tree) -> trees.Tree:
    """The latest observation of each stack; arguments as `begun`."""
    return _of_features(_Axis.latest, space, count, stacks)


def joined(space: Space, count: int, observations: Sequence[trees.Tree]) -> trees.Tree:
    """The stacks of `count` observations, the oldest first; arguments as `begun`."""
    return _of_features(_Axis.join, space, count, *observations)


def _of_features(method: Callable[..., Any], space: Space, count: int, *observations: trees.Tree) -> trees.Tree:
    """The results of a method of `_Axis` for the parts of the space; masks and embeddings are the last ones."""

    def result(leaf: Space, path: Path, *parts: Any) -> Any:
        return method(_Axis.of(leaf, count), *parts) if NOT_FEATURES.isdisjoint(path) else parts[-1]

    return walk(result, space, *observations)


def stack_axis(space: Space, count: int) -> int | None:
    """The axis along which images were stacked, from the space of the stacks; None if the space is not of images."""
    shape = space.shape or ()
    if not isinstance(space, spaces.Box) or len(shape) < 3:
        return None
    axis = _Axis.of(space, count).axis
    return axis if shape[axis] % count == 0 else None


@dataclass(frozen=True)
class _Axis:
    """The axis along which the observations of a stack lie.

    Args:
        count: k, observations in a stack.
        axis: counted from the last axis, -1.
        new: whether single observations lack this axis, the last one.
    """

    count: int
    axis: int = -1
    new: bool = False

    @classmethod
    def of(cls, space: Space, count: int) -> _Axis:
        shape = space.shape or ()
        pixels = space.dtype == np.uint8
        if not shape or (len(shape) == 2 and pixels):
            return cls(count, new=True)
        if len(shape) == 3 and isinstance(space, spaces.Box) and channels_come_first(shape):
            return cls(count, -3)
        return cls(count, -4 if len(shape) == 4 and pixels else -1)

    def begin(self, obs: Any) -> Any:
        return self.join(*[obs] * self.count)

    def join(self, *observations: Any) -> Any:
        frames = [obs[..., None] if self.new else obs for obs in observations]
        return trees.namespace(frames[0]).concat(frames, axis=self.axis)

    def latest(self, stacks: Any) -> Any:
        if self.new:
            return stacks[..., -1]
        width = stacks.shape[self.axis] // self.count
        return stacks[..., slice(-width, None), *[slice(None)] * (-1 - self.axis)]

    def push(self, stacks: Any, obs: Any) -> Any:
        frame = obs[..., None] if self.new else obs
        kept = (slice(frame.shape[self.axis], None), *[slice(None)] * (-1 - self.axis))
        return trees.namespace(frame).concat([stacks[..., *kept], frame], axis=self.axis)
