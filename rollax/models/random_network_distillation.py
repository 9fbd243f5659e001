"""`RandomNetworkDistillation`: a fixed random network and its predictor, whose error is large for new observations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jax import lax
from jaxtyping import Array, Float

from rollax.core.spaces import Path, at
from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import HIDDEN_GAIN, ImageLayout, feature_leaves
from rollax.models.layers import MLP, dense

_LIMIT = 5.0


@dataclass(frozen=True)
class ScaledObservations:
    """Standardizes observations, in NumPy or JAX.

    The elements of all Box parts, concatenated to [N, size], are standardized; other parts, which are discrete, are not
    changed.

    Attributes:
        parts: `(path, space)` of each part of the observation that is a feature.
    """

    parts: tuple[tuple[Path, spaces.Space], ...]

    @classmethod
    def of(cls, space: spaces.Space) -> ScaledObservations:
        """Returns the instance for an observation space; raises SpaceError if the space has no features."""
        return cls(tuple(feature_leaves(space)))

    @property
    def size(self) -> int:
        """The number of Box elements in one observation."""
        return sum(math.prod(part.shape) for _, part in self.parts if isinstance(part, spaces.Box))

    @property
    def space(self) -> spaces.Space:
        """The space of the result of `scaled`."""
        return spaces.Dict({str(place): _scaled_space(part) for place, (_, part) in enumerate(self.parts)})

    def numbers(self, obs: Any) -> np.ndarray:
        """Returns the Box elements of columns of N observations as [N, size] float32."""
        columns = [np.asarray(at(obs, path)) for path, part in self.parts if isinstance(part, spaces.Box)]
        rows = len(np.asarray(at(obs, self.parts[0][0])))
        flat = [column.reshape(rows, -1).astype(np.float32) for column in columns]
        return np.concatenate([np.empty((rows, 0), np.float32), *flat], axis=1)

    def scaled(self, obs: Any, moments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns columns of `space`, with (x - mean) / deviation clipped to [-5, 5] for each Box element x.

        Args:
            obs: columns of N observations.
            moments: `mean` and `deviation` of the Box elements, [size].
        """
        columns, start = {}, 0
        for place, (path, part) in enumerate(self.parts):
            column = at(obs, path)
            if isinstance(part, spaces.Box):
                own = slice(start, start := start + math.prod(part.shape))
                mean, deviation = (moments[name][own].reshape(part.shape) for name in ("mean", "deviation"))
                column = ((column.astype(np.float32) - mean) / deviation).clip(-_LIMIT, _LIMIT)
                layout = ImageLayout.of(part)
                column = column if layout is None else layout.to_channels_last(column)
            columns[str(place)] = column
        return columns


def _scaled_space(part: spaces.Space) -> spaces.Space:
    if not isinstance(part, spaces.Box):
        return part
    layout = ImageLayout.of(part)
    # Without bounds, because encoders would map images from their bounds to [0, 1].
    return spaces.Box(-np.inf, np.inf, part.shape if layout is None else layout.shape, np.float32)


class RandomNetworkDistillation(nnx.Module):
    """A fixed random target network, and a predictor that learns its outputs.

    Source: Burda et al. (2018), arXiv:1810.12894: the predictor has two more hidden layers than the target. The target
        has no gradient.

    Args:
        space: `ScaledObservations.space`.
        config: has the convolutions of images.
        widths: the widths of the target's hidden layers, then the width of its output.
    """

    def __init__(self, space: spaces.Space, config: ModelConfig, widths: Sequence[int], *, rngs: nnx.Rngs) -> None:
        *hiddens, outputs = widths
        # Observations are already standardized, and running statistics would change the target.
        normalization = "layer" if config.normalization == "layer" else None
        config = config.model_copy(update={"normalize_observations": False, "normalization": normalization})
        self.target = _Network(space, config, hiddens, outputs, rngs=rngs)
        self.predictor = _Network(space, config, [*hiddens, *[widths[-2:][0]] * 2], outputs, rngs=rngs)

    def __call__(self, obs: Any) -> Float[Array, "B"]:
        """Returns the mean squared error of the predictor for each observation; only the predictor has a gradient."""
        return jnp.square(self.predictor(obs) - lax.stop_gradient(self.target(obs))).mean(axis=-1)


class _Network(nnx.Module):
    def __init__(
        self, space: spaces.Space, config: ModelConfig, hiddens: Sequence[int], outputs: int, *, rngs: nnx.Rngs
    ) -> None:
        self.encoder = Encoder(space, config, rngs=rngs)
        self.mlp = MLP(self.encoder.features, hiddens, "relu", rngs=rngs)
        self.output = dense(self.mlp.features, outputs, gain=HIDDEN_GAIN, rngs=rngs)

    def __call__(self, obs: Any) -> Float[Array, "B F"]:
        return self.output(self.mlp(self.encoder(obs)))
