"""From raw observation columns of any space to one float32 feature vector per row, inside the compiled function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.errors import SpaceError
from rollax.models.config import ModelConfig
from rollax.models.layers import CNN
from rollax.spaces import Path, at, leaves, path_text

# Keys of a top-level Dict observation that describe the available actions.
NOT_FEATURES = frozenset({"action_mask", "avail_actions"})
# A rank-3 Box with a smaller side is not an image and is flattened.
MIN_IMAGE_SIDE = 5
# A wider range, such as that of Box(-finfo.max, finfo.max), stands for "unbounded".
_MAX_RANGE = 1e6


class Encoder(nnx.Module):
    """Encodes every leaf of an observation and concatenates the features, a Dict's in the order of its sorted keys.

    An image is encoded by a `CNN`, any other Box is flattened. Discrete and MultiDiscrete are one-hot, MultiBinary is
    zeros and ones. `action_mask` and `avail_actions` in a top-level Dict are left out.

    An unsupported space, or one without features, raises SpaceError.
    """

    def __init__(self, observation_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        parts = _feature_leaves(observation_space)
        if not parts:
            raise SpaceError(
                "No features to learn from.",
                where="observation_space",
                got=observation_space,
                expected=f"an entry besides {sorted(NOT_FEATURES)}",
                fix="put the agent's observation under another key of the Dict",
            )
        self.paths = tuple(path for path, _ in parts)
        self.parts = nnx.List([_encoder_of(leaf, path, config, rngs) for path, leaf in parts])
        self.features = sum(part.features for part in self.parts)
        # The features of images need no further hidden layers.
        self.images_only = all(isinstance(part, ImageEncoder) for part in self.parts)

    def __call__(self, obs: Any) -> Float[Array, "B F"]:
        features = [part(jnp.asarray(at(obs, path))) for path, part in zip(self.paths, self.parts, strict=True)]
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


class FlatEncoder(nnx.Module):
    """Flattens a Box or MultiBinary to float32; a uint8 Box is mapped from its bounds to [0, 1]."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        self.features = math.prod(space.shape)
        self.unit = UnitInterval()
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            self.unit = UnitInterval.of(space)

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        flat = column if column.ndim == 2 else column.reshape(column.shape[0], self.features)
        return self.unit(flat)


class OneHotEncoder(nnx.Module):
    """Concatenated one-hot codes of a Discrete or MultiDiscrete; a value outside the space is all zeros."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        sizes, starts = (space.n, space.start) if isinstance(space, spaces.Discrete) else (space.nvec, space.start)
        self.sizes = tuple(int(n) for n in np.ravel(sizes))
        self.starts = tuple(int(n) for n in np.ravel(starts))
        self.features = sum(self.sizes)

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        values = column.reshape(column.shape[0], len(self.sizes))
        if len(self.sizes) > 1:
            values = values[:, np.repeat(np.arange(len(self.sizes)), self.sizes)]
        ranges = [np.arange(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True)]
        return (values == np.concatenate(ranges)[None]).astype(jnp.float32)


class ImageEncoder(nnx.Module):
    """A `CNN` over pixels mapped to [0, 1]."""

    def __init__(self, space: spaces.Box, layout: ImageLayout, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.layout = layout
        self.unit = UnitInterval.of(space)
        self.cnn = CNN(layout.shape, config.conv_filters, config.conv_dense, config.conv_activation, rngs=rngs)
        self.features = self.cnn.features

    def pixels(self, column: Array) -> Float[Array, "B height width channels"]:
        """The input of the convolutions."""
        # Transposed first, while the pixels are bytes and not floats.
        return self.unit(self.layout.to_channels_last(column))

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        return self.cnn(self.pixels(column))


@dataclass(frozen=True)
class UnitInterval:
    """Maps numbers to float32, from a space's bounds to [0, 1]; without a finite range it only casts them."""

    low: float = 0.0
    scale: float = 1.0
    integer: bool = False

    @classmethod
    def of(cls, space: spaces.Box) -> UnitInterval:
        """The map from the lowest and highest bound of a Box."""
        integer = not np.issubdtype(space.dtype, np.floating)
        low, high = float(space.low.min()), float(space.high.max())
        if not 0 < high - low < _MAX_RANGE:
            return cls(integer=integer)
        return cls(low, 1.0 / (high - low), integer)

    def __call__(self, column: Array) -> Float[Array, "..."]:
        x = column.astype(jnp.float32)
        # Floats in a space of integers come from an observation filter, which has scaled them.
        if self.integer and jnp.issubdtype(column.dtype, jnp.floating):
            return x
        if self.low != 0.0:
            x = x - self.low
        return x if self.scale == 1.0 else x * self.scale


@dataclass(frozen=True)
class ImageLayout:
    """The axes of an image."""

    shape: tuple[int, int, int]  # height, width, channels; those of stacked frames are counted together
    order: tuple[int, ...]  # the axes of a column in the order batch, height, width, channels

    @classmethod
    def of(cls, space: spaces.Box) -> ImageLayout | None:
        """The layout of a Box; None if it is not an image.

        An image is a rank-3 Box with two sides of at least 5. Its channels are the axis that differs if the first two
        or the last two are equal, otherwise the shorter of the first and the last, by default the last. A uint8 Box of
        rank 2 is an image of one channel, and one of rank 4 is frames stacked along the first axis.
        """
        shape, pixels = space.shape, space.dtype == np.uint8
        if len(shape) == 2 and pixels:
            layout = cls((*shape, 1), (0, 1, 2))
        elif len(shape) == 3:
            first, second, last = shape
            if first != second and (second == last or first < last):
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

    def to_channels_last(self, column: Array) -> Array:
        """Returns [B, height, width, channels] for a column of the space."""
        if self.order != tuple(range(column.ndim)):
            column = column.transpose(self.order)
        return column if column.shape[1:] == self.shape else column.reshape(column.shape[0], *self.shape)


def _feature_leaves(space: spaces.Space) -> list[tuple[Path, spaces.Space]]:
    hidden = NOT_FEATURES if isinstance(space, spaces.Dict) else frozenset()
    # Sorted, because equal Dict spaces may list their keys in different orders, and the weights must fit all of them.
    found = [(path, leaf) for path, leaf in leaves(space) if hidden.isdisjoint(path[:1])]
    return sorted(found, key=lambda item: [f"{key:09}" if isinstance(key, int) else str(key) for key in item[0]])


def _encoder_of(
    space: spaces.Space, path: Path, config: ModelConfig, rngs: nnx.Rngs
) -> FlatEncoder | OneHotEncoder | ImageEncoder:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotEncoder(space)
    if isinstance(space, spaces.MultiBinary):
        return FlatEncoder(space)
    if isinstance(space, spaces.Box):
        layout = ImageLayout.of(space)
        return FlatEncoder(space) if layout is None else ImageEncoder(space, layout, config, rngs=rngs)
    raise SpaceError(
        "A space that no model can encode.",
        where="observation_space" + path_text(path),
        got=space,
        expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those",
        fix="wrap the env to give one of those, or use a custom model",
    )
