"""From raw observation columns of any space to one float32 feature vector per row, inside the compiled function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.core.spaces import Path, at, path_text, space_text
from rollax.errors import SpaceError
from rollax.models.config import LayersConfig
from rollax.models.features import (
    ImageLayout,
    UnitInterval,
    feature_leaves,
    is_of_floats,
    not_encodable,
    one_hot_values,
)

if TYPE_CHECKING:
    from rollax.models.images import ImageEncoder


class Encoder(nnx.Module):
    """Encodes every leaf of an observation and concatenates the features; the keys of a Dict are sorted.

    An image is encoded by a `CNN`, any other Box is flattened. Discrete and MultiDiscrete are one-hot, MultiBinary is
    zeros and ones. `action_mask` and `avail_actions` in a top-level Dict are left out.

    Raises SpaceError for an unsupported space, or a space without features.
    """

    def __init__(self, observation_space: spaces.Space, config: LayersConfig, *, rngs: nnx.Rngs) -> None:
        parts = feature_leaves(observation_space)
        self.paths = tuple(path for path, _ in parts)
        self.parts = nnx.List([_encoder_of(leaf, path, config, rngs) for path, leaf in parts])
        self.features = sum(part.features for part in self.parts)
        # The features of images need no further hidden layers.
        self.images_only = all(part.of_images for part in self.parts)

    def __call__(self, obs: Any) -> Float[Array, "B F"]:
        features = [part(jnp.asarray(at(obs, path))) for path, part in zip(self.paths, self.parts, strict=True)]
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


class FlatEncoder(nnx.Module):
    """Flattens a Box or MultiBinary to float32; a uint8 Box is mapped from its bounds to [0, 1].

    `normalized`: whether a Box of floats has a `RunningNorm`.
    """

    of_images = False

    def __init__(self, space: spaces.Box | spaces.MultiBinary, *, normalized: bool = False) -> None:
        self.features = math.prod(space.shape)
        self.unit = UnitInterval()
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            self.unit = UnitInterval.of(space)
        norm: Any = None
        if normalized and is_of_floats(space):
            from rollax.models.simba import RunningNorm  # loaded only where it is used

            norm = RunningNorm(self.features)
        self.norm = norm

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        flat = column if column.ndim == 2 else column.reshape(column.shape[0], self.features)
        flat = self.unit.scaled(flat.astype(jnp.float32))
        return flat if self.norm is None else self.norm(flat)


class OneHotEncoder(nnx.Module):
    """Concatenated one-hot codes of a Discrete or MultiDiscrete; a value outside the space is all zeros."""

    of_images = False

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        self.sizes, values = one_hot_values(space)
        self.values = tuple(values.tolist())
        self.features = sum(self.sizes)

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        values = column.reshape(column.shape[0], len(self.sizes))
        if len(self.sizes) > 1:
            values = values[:, np.repeat(np.arange(len(self.sizes)), self.sizes)]
        return (values == np.array(self.values)[None]).astype(jnp.float32)


def _encoder_of(
    space: spaces.Space, path: Path, config: LayersConfig, rngs: nnx.Rngs
) -> FlatEncoder | OneHotEncoder | ImageEncoder:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotEncoder(space)
    if isinstance(space, spaces.MultiBinary):
        return FlatEncoder(space)
    if isinstance(space, spaces.Box):
        _check_32_bits(space, path)
        layout = ImageLayout.of(space)
        if layout is None:
            return FlatEncoder(space, normalized=config.normalize_observations)
        from rollax.models.images import ImageEncoder  # loaded only where it is used

        return ImageEncoder(space, layout, config, rngs=rngs)
    raise not_encodable(space, path)


def _check_32_bits(space: spaces.Box, path: Path) -> None:
    """Raises SpaceError for a space of integers beyond 32 bits, which JAX would wrap silently."""
    if space.dtype is None or space.dtype.kind not in "iu" or space.dtype.itemsize < 8:
        return
    of_dtype, of_jax = np.iinfo(space.dtype.name), np.iinfo(np.int32 if space.dtype.kind == "i" else np.uint32)
    # The bounds of the dtype stand for a space without bounds.
    too_low = (space.low < of_jax.min) & (space.low > of_dtype.min)
    too_high = (space.high > of_jax.max) & (space.high < of_dtype.max)
    if (too_low | too_high).any():
        what = "The integers of the observations need more than 32 bits."
        raise SpaceError(what, f"observation_space{path_text(path)}", space_text(space)).expected(
            f"numbers from {of_jax.min} to {of_jax.max}, or floats", "declare a Box of float32, and scale its numbers"
        )
