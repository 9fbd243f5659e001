"""From raw observation columns of any space to one float32 feature vector per row, inside the compiled function."""

from __future__ import annotations

import math
from collections.abc import Iterator
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

# Keys of a top-level Dict observation that say which actions there are, not what is seen.
NOT_FEATURES = frozenset({"action_mask", "avail_actions"})
# Below this a rank-3 Box is taken for a small tensor and flattened.
MIN_IMAGE_SIDE = 5
# A wider range is a placeholder for "unbounded" (Box(-finfo.max, finfo.max) is common), not a scale.
_MAX_RANGE = 1e6

Path = tuple[str | int, ...]


class Encoder(nnx.Module):
    """Encodes every leaf of an observation and concatenates the features, a Dict's in the order of its sorted keys.

    Box: an image goes through a `CNN`, anything else is flattened. Discrete and MultiDiscrete: one-hot, from
    `start` on. MultiBinary: its zeros and ones. `action_mask` and `avail_actions` in a top-level Dict are left out.

    Raises:
        SpaceError: an unsupported space, or one with nothing but a mask in it.
    Attributes:
        features: width of the output.
        images_only: there are images and nothing else; a CNN has then made features that need no further hidden layers.
    """

    def __init__(self, observation_space: spaces.Space, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        leaves = list(_feature_leaves(observation_space))
        if not leaves:
            raise SpaceError(
                "No features to learn from.",
                where="observation_space",
                got=observation_space,
                expected=f"an entry besides {sorted(NOT_FEATURES)}",
                fix="put what the agent sees under another key of the Dict",
            )
        self.paths = tuple(path for path, _ in leaves)
        self.parts = nnx.List([_encoder_of(leaf, path, config, rngs) for path, leaf in leaves])
        self.features = sum(part.features for part in self.parts)
        self.images_only = all(isinstance(part, ImageEncoder) for part in self.parts)

    def __call__(self, obs: Any) -> Float[Array, "B F"]:
        features = [part(_at(obs, path)) for path, part in zip(self.paths, self.parts, strict=True)]
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


class FlatEncoder(nnx.Module):
    """Flattens a Box or MultiBinary to float32; uint8 is mapped from its bounds to [0, 1], the rest only cast."""

    def __init__(self, space: spaces.Box | spaces.MultiBinary) -> None:
        self.features = math.prod(space.shape)
        self.unit = (
            UnitInterval.of(space) if space.dtype == np.uint8 and isinstance(space, spaces.Box) else UnitInterval()
        )

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        flat = column if column.ndim == 2 else column.reshape(column.shape[0], self.features)
        return self.unit(flat)


class OneHotEncoder(nnx.Module):
    """One-hot codes of a Discrete or MultiDiscrete, side by side; a value outside the space is all zeros."""

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
        """The images as the convolutions see them."""
        # The transposition comes first: it moves bytes then, not floats.
        return self.unit(self.layout.to_channels_last(column))

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        return self.cnn(self.pixels(column))


@dataclass(frozen=True)
class UnitInterval:
    """Maps numbers to float32, from a space's bounds to [0, 1]; without a finite range they are only cast."""

    low: float = 0.0
    scale: float = 1.0
    integer: bool = False

    @classmethod
    def of(cls, space: spaces.Box) -> UnitInterval:
        """The map of a Box, from its lowest bound to its highest."""
        integer = not np.issubdtype(space.dtype, np.floating)
        low, high = float(space.low.min()), float(space.high.max())
        if not 0 < high - low < _MAX_RANGE:
            return cls(integer=integer)
        return cls(low, 1.0 / (high - low), integer)

    def __call__(self, column: Array) -> Float[Array, "..."]:
        x = column.astype(jnp.float32)
        # Floats for a space of integers come from an observation filter, which has scaled them already.
        if self.integer and jnp.issubdtype(column.dtype, jnp.floating):
            return x
        if self.low != 0.0:
            x = x - self.low
        return x if self.scale == 1.0 else x * self.scale


@dataclass(frozen=True)
class ImageLayout:
    """Where an image's height, width and channels are.

    Attributes:
        shape: height, width, channels; the channels of stacked frames count together.
        order: the axes of a column in the order batch, height, width, channels.
    """

    shape: tuple[int, int, int]
    order: tuple[int, ...]

    @classmethod
    def of(cls, space: spaces.Box) -> ImageLayout | None:
        """The layout of a Box, None if it is no image.

        An image is a rank-3 Box with two sides of at least 5. Its channels are the axis that differs if the first two
        or the last two are equal, else the shorter of the first and the last; in doubt the last. For uint8, rank 2 is
        an image of one channel, and rank 4 is frames stacked along the first axis.
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
        """[B, height, width, channels] from a column of the space."""
        if self.order != tuple(range(column.ndim)):
            column = column.transpose(self.order)
        return column if column.shape[1:] == self.shape else column.reshape(column.shape[0], *self.shape)


def _feature_leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    if isinstance(space, spaces.Dict):
        # Equal Dict spaces may list their keys in different orders: a stored one, another env's. The weights must fit.
        for key, part in sorted(space.spaces.items(), key=lambda item: str(item[0])):
            if path or key not in NOT_FEATURES:
                yield from _feature_leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, part in enumerate(space.spaces):
            yield from _feature_leaves(part, (*path, position))
    else:
        yield path, space


def _at(obs: Any, path: Path) -> Array:
    for key in path:
        obs = obs[key]
    return jnp.asarray(obs)


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
        where="observation_space" + "".join(f"[{key!r}]" for key in path),
        got=space,
        expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those",
        fix="wrap the env to give one of those, or use a custom model",
    )
