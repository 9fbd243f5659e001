"""`convolution_plan`: the sizes of convolutions for images. This module imports neither JAX nor PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollax.errors import ConfigError
from rollax.models.config import ConvFilter

# (shortest image side, filters, dense width), largest first. The first row is the network of Mnih et al. (2015).
_CONV_DEFAULTS: tuple[tuple[int, tuple[ConvFilter, ...], int], ...] = (
    (64, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    (32, ((32, 4, 2), (64, 4, 2), (64, 3, 1)), 256),
    (16, ((32, 3, 2), (64, 3, 2)), 256),
    (5, ((16, 3, 1), (32, 3, 1)), 128),
    (1, (), 128),
)


@dataclass(frozen=True)
class ConvolutionPlan:
    """The sizes of convolutions without padding, and of the dense layer after them."""

    convolutions: tuple[tuple[int, int, tuple[int, int], int], ...]  # channels in and out, kernel, stride
    outputs: int  # of the last convolution, for one image
    dense_features: int


def convolution_plan(
    shape: tuple[int, int, int], filters: Sequence[ConvFilter] | None, dense_features: int | None
) -> ConvolutionPlan:
    """Returns the sizes of layers for images [height, width, channels]; see `CNN` for the arguments and the error."""
    default_filters, default_dense = next((f, d) for side, f, d in _CONV_DEFAULTS if min(shape[:2]) >= side)
    height, width, channels = shape
    convolutions: list[tuple[int, int, tuple[int, int], int]] = []
    for out, kernel, stride in default_filters if filters is None else filters:
        kernel_height, kernel_width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        if kernel_height > height or kernel_width > width:
            expected = "kernels no larger than their inputs, which earlier convolutions make smaller"
            raise ConfigError(
                f"Convolution {len(convolutions)} has a kernel larger than its input.",
                f"model.conv_filters, for an image of {shape}",
                f"kernel {kernel_height} x {kernel_width} on {height} x {width}",
            ).expected(expected, "use smaller kernels or strides, or leave conv_filters out")
        convolutions.append((channels, out, (kernel_height, kernel_width), stride))
        height, width, channels = (height - kernel_height) // stride + 1, (width - kernel_width) // stride + 1, out
    dense = default_dense if dense_features is None else dense_features
    return ConvolutionPlan(tuple(convolutions), height * width * channels, dense)
