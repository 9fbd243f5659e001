"""Images: convolutional layers, and the features of pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.models.config import Activation, ConvFilter, LayersConfig, Normalization
from rollax.models.convolution_plan import convolution_plan
from rollax.models.features import HIDDEN_GAIN, ImageLayout, UnitInterval
from rollax.models.layers import ACTIVATIONS, dense, make_norms, normalized_activation, orthogonal, zeros_init


class ImageEncoder(nnx.Module):
    """A `CNN` over pixels mapped to [0, 1]."""

    of_images = True

    def __init__(self, space: spaces.Box, layout: ImageLayout, config: LayersConfig, *, rngs: nnx.Rngs) -> None:
        self.layout = layout
        self.unit = UnitInterval.of(space)
        sizes = config.conv_filters, config.conv_dense, config.conv_activation, config.conv_normalization
        self.cnn = CNN(layout.shape, *sizes, rngs=rngs)
        self.features = self.cnn.features

    def pixels(self, column: Array) -> Float[Array, "B height width channels"]:
        """The input of the convolutions."""
        # The transposition is first, because pixels are smaller as bytes than as floats.
        return self.unit.scaled(self.layout.to_channels_last(column).astype(jnp.float32))

    def __call__(self, column: Array) -> Float[Array, "B F"]:
        return self.cnn(self.pixels(column))


class CNN(nnx.Module):
    """Convolutions without padding and one dense layer, each followed by the normalization, if any, and the activation.

    Args:
        shape: height, width and channels of an image.
        filters: (output channels, kernel, stride) of each convolution; None: chosen by the image's shorter side.
        dense_features: the width of the dense layer; None: chosen by the image's shorter side.
        normalization: the kind of normalization, as in `model.normalization`. "layer" normalizes the output of a
            convolution over the channels of each position. None: no normalization.
    Raises:
        ConfigError: a kernel is larger than its input.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        filters: Sequence[ConvFilter] | None = None,
        dense_features: int | None = None,
        activation: Activation = "relu",
        normalization: Normalization | None = None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        plan = convolution_plan(shape, filters, dense_features)
        convolutions = [
            nnx.Conv(
                channels,
                out,
                kernel_size=kernel,
                strides=(stride, stride),
                padding="VALID",
                kernel_init=orthogonal(HIDDEN_GAIN),
                bias_init=zeros_init,
                rngs=rngs,
            )
            for channels, out, kernel, stride in plan.convolutions
        ]
        self.convolutions = nnx.List(convolutions)
        self.features = plan.dense_features
        self.dense = dense(plan.outputs, self.features, gain=HIDDEN_GAIN, rngs=rngs)
        widths = [*(out for _, out, _, _ in plan.convolutions), self.features]
        self.norms = nnx.List(make_norms(normalization, widths, rngs))
        self.activation: Activation = activation

    def __call__(self, images: Float[Array, "B height width channels"]) -> Float[Array, "B F"]:
        activation, norms = ACTIVATIONS[self.activation], [*self.norms] or [None] * (len(self.convolutions) + 1)
        for convolution, norm in zip(self.convolutions, norms[:-1], strict=True):
            images = normalized_activation(_convolved(convolution, images), norm, activation, norm_first=True)
        features = self.dense(images.reshape(images.shape[0], -1))
        return normalized_activation(features, norms[-1], activation, norm_first=True)


_AS_PRODUCTS: ContextVar[bool] = ContextVar("convolutions as matrix products on the CPU", default=True)


@contextlib.contextmanager
def plain_convolutions() -> Iterator[None]:
    """A context in which models are traced with XLA's convolutions on the CPU too; see `_convolved`."""
    token = _AS_PRODUCTS.set(False)
    try:
        yield
    finally:
        _AS_PRODUCTS.reset(token)


def _convolved(layer: nnx.Conv, images: Float[Array, "B height width channels"]) -> Array:
    """Returns the layer's output, on the CPU by one matrix product over strided slices.

    XLA's CPU convolution has a slow gradient inside a loop: a gradient step on 128 Atari images takes 1.2 s, and 0.07 s
    with slices. If the stride divides the kernel's sides, one slice serves a block of stride × stride pixels: 4 slices
    instead of 64 for a kernel of 8 × 8 at stride 4.
    """
    if jax.default_backend() != "cpu" or not _AS_PRODUCTS.get():
        return layer(images)
    kernel = layer.kernel[...]
    (stride, _) = cast(tuple[int, int], layer.strides)
    if stride > 1 and kernel.shape[0] % stride == 0 and kernel.shape[1] % stride == 0:
        images, kernel, stride = _in_blocks(images, stride), _in_blocks_of(kernel, stride), 1
    rows, columns, _, channels = kernel.shape
    height, width = (images.shape[1] - rows) // stride + 1, (images.shape[2] - columns) // stride + 1
    patches = jnp.concatenate(
        [
            images[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
            for i in range(rows)
            for j in range(columns)
        ],
        axis=-1,
    )
    out = patches @ kernel.reshape(-1, channels)
    return out if layer.bias is None else out + layer.bias[...]


def _in_blocks(images: Array, stride: int) -> Array:
    """[B, height / stride, width / stride, stride² channels]: images in blocks; incomplete blocks are cut off."""
    batch, height, width, channels = images.shape
    height, width = height // stride, width // stride
    images = images[:, : height * stride, : width * stride]
    blocks = images.reshape(batch, height, stride, width, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height, width, stride * stride * channels)


def _in_blocks_of(kernel: Array, stride: int) -> Array:
    """[rows / stride, columns / stride, stride² channels, out]: the kernel for images in blocks."""
    rows, columns, channels, out = kernel.shape
    rows, columns = rows // stride, columns // stride
    blocks = kernel.reshape(rows, stride, columns, stride, channels, out).transpose(0, 2, 1, 3, 4, 5)
    return blocks.reshape(rows, columns, stride * stride * channels, out)
