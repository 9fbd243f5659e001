"""Encoders from raw observation columns of any space to one float32 feature vector per row, as in JAX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rollax.core.spaces import Path, at
from rollax.models.config import ModelConfig
from rollax.models.features import (
    ImageLayout,
    UnitInterval,
    feature_leaves,
    is_of_floats,
    not_encodable,
    one_hot_values,
)
from rollax.torch.layers import CNN, RunningNorm


class Encoder(nn.Module):
    """Encodes every leaf of an observation and concatenates the features; spaces and errors as in JAX's `Encoder`."""

    def __init__(self, observation_space: spaces.Space, config: ModelConfig) -> None:
        super().__init__()
        parts = feature_leaves(observation_space)
        self.paths = tuple(path for path, _ in parts)
        encoders = [_encoder_of(leaf, path, config) for path, leaf in parts]
        self.parts = nn.ModuleList(encoders)
        self.features = sum(encoder.features for encoder in encoders)
        self.images_only = all(isinstance(encoder, ImageEncoder) for encoder in encoders)

    def forward(self, obs: Any) -> Tensor:
        features = [part(at(obs, path)) for path, part in zip(self.paths, self.parts, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


class FlatEncoder(nn.Module):
    """Flattens a Box or MultiBinary to float32; a uint8 Box is mapped from its bounds to [0, 1].

    `normalized`: whether a `RunningNorm` standardizes a Box of floats.
    """

    def __init__(self, space: spaces.Box | spaces.MultiBinary, *, normalized: bool = False) -> None:
        super().__init__()
        self.features = math.prod(space.shape)
        self.unit = UnitInterval()
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            self.unit = UnitInterval.of(space)
        self.norm = RunningNorm(self.features) if normalized and is_of_floats(space) else None

    def forward(self, column: Tensor) -> Tensor:
        flat = self.unit.scaled(column.reshape(column.shape[0], self.features).to(torch.float32))
        return flat if self.norm is None else self.norm(flat)


class OneHotEncoder(nn.Module):
    """Concatenated one-hot codes of a Discrete or MultiDiscrete; a value outside the space becomes zeros."""

    _values: Tensor
    _places: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes, values = one_hot_values(space)
        self.features = len(values)
        places = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.register_buffer("_values", torch.as_tensor(values), persistent=False)
        self.register_buffer("_places", torch.as_tensor(places), persistent=False)

    def forward(self, column: Tensor) -> Tensor:
        values = column.reshape(column.shape[0], len(self.sizes)).to(self._values.dtype)  # torch.uint16 has no ==
        return (values[:, self._places] == self._values).to(torch.float32)


class ImageEncoder(nn.Module):
    """A `CNN` over pixels mapped to [0, 1]."""

    def __init__(self, space: spaces.Box, layout: ImageLayout, config: ModelConfig) -> None:
        super().__init__()
        self.layout = layout
        self.unit = UnitInterval.of(space)
        sizes = config.conv_filters, config.conv_dense, config.conv_activation, config.conv_normalization
        self.cnn = CNN(layout.shape, *sizes)
        self.features = self.cnn.features

    def forward(self, column: Tensor) -> Tensor:
        images = column.permute(self.layout.order).reshape(column.shape[0], *self.layout.shape)
        return self.cnn(self.unit.scaled(images.to(torch.float32)))


def _encoder_of(space: spaces.Space, path: Path, config: ModelConfig) -> FlatEncoder | OneHotEncoder | ImageEncoder:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotEncoder(space)
    if isinstance(space, spaces.MultiBinary):
        return FlatEncoder(space)
    if isinstance(space, spaces.Box):
        layout = ImageLayout.of(space)
        if layout is None:
            return FlatEncoder(space, normalized=config.normalize_observations)
        return ImageEncoder(space, layout, config)
    raise not_encodable(space, path)
