"""The parts of default models that JAX and PyTorch have in common. This module imports neither library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces

from rollax.core.spaces import NOT_FEATURES, Path, channels_come_first, leaves, path_text
from rollax.errors import ConfigError, SpaceError

HIDDEN_GAIN = math.sqrt(2)
# A small head makes the first policy almost uniform (Andrychowicz et al. 2020, arXiv:2006.05990).
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
# The hidden layer of a residual block is this many times as wide as the input of the block.
BLOCK_WIDENING = 4

# A rank-3 Box with a smaller side is not an image and is flattened.
MIN_IMAGE_SIDE = 5
# A wider range, such as in Box(-finfo.max, finfo.max), stands for "unbounded".
_MAX_RANGE = 1e6


def feature_leaves(space: spaces.Space) -> list[tuple[Path, spaces.Space]]:
    """Returns `(path, leaf)` for each leaf that is a feature, sorted by path; raises SpaceError without features."""
    hidden = NOT_FEATURES if isinstance(space, spaces.Dict) else frozenset()
    found = [(path, leaf) for path, leaf in leaves(space) if hidden.isdisjoint(path[:1])]
    if not found:
        raise SpaceError("The observation has no features.", "observation_space", space).expected(
            f"an entry besides {sorted(NOT_FEATURES)}", "put the agent's observation under another key of the Dict"
        )
    # Sorted, because equal Dict spaces may list their keys in different orders, and the same weights must fit them all.
    return sorted(found, key=lambda item: [f"{key:09}" if isinstance(key, int) else str(key) for key in item[0]])


def not_encodable(space: spaces.Space, path: Path) -> SpaceError:
    """Returns the error for a leaf of an observation space that no default model encodes."""
    expected = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of those"
    return SpaceError(
        "The default model cannot encode this space.", f"observation_space{path_text(path)}", space
    ).expected(expected, "wrap the env to convert it, or use a custom model")


def one_hot_values(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns the size of each choice of a space, and the value for each element of the concatenated one-hot codes."""
    sizes, starts = (space.n, space.start) if isinstance(space, spaces.Discrete) else (space.nvec, space.start)
    sizes = tuple(int(n) for n in np.ravel(sizes))
    ranges = [np.arange(start, start + size) for start, size in zip(np.ravel(starts), sizes, strict=True)]
    return sizes, np.concatenate(ranges)


def is_of_floats(space: spaces.Space) -> TypeGuard[spaces.Box]:
    """Whether a space is a Box of floats."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


@dataclass(frozen=True)
class UnitInterval:
    """Maps numbers to float32, from a space's bounds to [0, 1]; without a finite range it only casts them."""

    low: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, space: spaces.Box) -> UnitInterval:
        """The map from the lowest and highest bound of a Box."""
        low, high = float(space.low.min()), float(space.high.max())
        if not 0 < high - low < _MAX_RANGE:
            return cls()
        return cls(low, 1.0 / (high - low))

    def scaled(self, x: Any) -> Any:
        """Maps numbers that already are float32."""
        if self.low != 0.0:
            x = x - self.low
        return x if self.scale == 1.0 else x * self.scale


@dataclass(frozen=True)
class ImageLayout:
    """The axes of an image."""

    shape: tuple[int, int, int]  # height, width, channels; the channels of stacked frames are counted together
    order: tuple[int, ...]  # the axes of a column in the order batch, height, width, channels

    @classmethod
    def of(cls, space: spaces.Box) -> ImageLayout | None:
        """Returns the layout of a Box; None if it is not an image.

        An image is a rank-3 Box whose height and width are at least 5; `channels_come_first` finds the axis of the
        channels. A uint8 Box of rank 2 is an image of one channel. A uint8 Box of rank 4 has frames stacked along the
        first axis.
        """
        shape, pixels = space.shape, space.dtype == np.uint8
        if len(shape) == 2 and pixels:
            layout = cls((*shape, 1), (0, 1, 2))
        elif len(shape) == 3:
            first, second, last = shape
            if channels_come_first(shape):
                layout = cls((second, last, first), (0, 2, 3, 1))
            else:
                layout = cls((first, second, last), (0, 1, 2, 3))
        elif len(shape) == 4 and pixels:
            frame = cls.of(spaces.Box(0, 255, shape[1:], np.uint8))
            if frame is None:
                return None
            height, width, channels = (axis + 1 for axis in frame.order[1:])
            layout = cls((*frame.shape[:2], shape[0] * frame.shape[2]), (0, height, width, 1, channels))
        else:
            return None
        return layout if min(layout.shape[:2]) >= MIN_IMAGE_SIDE else None

    def to_channels_last(self, column: Any) -> Any:
        """[B, height, width, channels] for a column of the space, of NumPy or JAX."""
        if self.order != tuple(range(column.ndim)):
            column = column.transpose(self.order)
        return column if column.shape[1:] == self.shape else column.reshape(column.shape[0], *self.shape)


def number_of_agents(critic_space: spaces.Space) -> int:
    """The number of agents that a centralized critic sees; ConfigError for a space that is not that of `critic_obs`."""
    parts = critic_space.spaces if isinstance(critic_space, spaces.Dict) else {}
    if parts.keys() != {"agent", "obs", "other"} or not isinstance(parts["agent"], spaces.Discrete):
        raise ConfigError(
            "The space is not that of `critic_obs`, which the default centralized critic reads.",
            "config key 'critic_space'",
            critic_space,
        ).expected(
            "Dict(agent=Discrete(agents), obs=..., other=...)",
            "leave critic_space out: a trainer or a RolloutWorker derives it; or give your model a method `critic`",
        )
    return int(parts["agent"].n)
