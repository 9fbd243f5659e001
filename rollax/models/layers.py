"""Dense and convolutional layers with orthogonal kernels and zero biases, noisy layers, and normalization."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import core, lax
from jaxtyping import Array, Float

from rollax.models.config import Activation, ConvFilter, Normalization
from rollax.models.features import HIDDEN_GAIN, convolution_plan

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "linear": lambda x: x,
}


def orthogonal(gain: float) -> Callable[..., Array]:
    """Returns an initializer: `gain` times a random matrix with orthonormal columns (rows, if there are fewer rows).

    Source: Saxe et al. (2013), arXiv:1312.6120. Deviations: NumPy draws the matrix, seeded by the key, because JAX
    compiles a QR decomposition for every shape, about a second per model. The triangular factor is the Cholesky factor
    of the Gram matrix: its diagonal is positive, so the matrix is uniformly distributed. Under a trace (`nnx.vmap`,
    `nnx.eval_shape`) JAX draws other numbers of the same distribution.
    """

    return partial(_orthogonal, gain=gain)


def _orthogonal(key: Array, shape: Sequence[int], dtype: Any = jnp.float32, *, gain: float) -> Array:
    if isinstance(key, core.Tracer):
        return jax.nn.initializers.orthogonal(gain)(key, tuple(shape), dtype)
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    rows, columns = math.prod(shape[:-1]), shape[-1]
    normal = random.standard_normal((max(rows, columns), min(rows, columns)))
    basis = np.linalg.solve(np.linalg.cholesky(normal.T @ normal), normal.T)
    matrix = basis.T if rows >= columns else basis
    # Unlike jnp.asarray, this compiles nothing.
    return jax.device_put((gain * matrix).reshape(shape).astype(dtype))


def zeros_init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Returns zeros; an initializer that compiles nothing, and allocates nothing under a trace."""
    if isinstance(key, core.Tracer):
        return jnp.zeros(shape, dtype)
    return jax.device_put(np.zeros(shape, dtype))


def dense(in_features: int, out_features: int, *, gain: float, rngs: nnx.Rngs) -> nnx.Linear:
    """Returns a linear layer with an orthogonal kernel, times `gain`, and a zero bias."""
    return nnx.Linear(in_features, out_features, kernel_init=orthogonal(gain), bias_init=zeros_init, rngs=rngs)


class NoisyLinear(nnx.Module):
    """y = (W + Σ ⊙ f(ε_out) f(ε_in)ᵀ) x + b + σ ⊙ f(ε_out), with f(e) = sign(e) √|e| and normal ε.

    Source: Fortunato et al. (2018), section 3 (factorised noise), arXiv:1706.10295; W and b begin uniform in
        ±1/√p, Σ and σ at σ_0/√p, for p inputs. One draw of the noise serves all rows of a call.
    """

    def __init__(self, in_features: int, out_features: int, *, sigma0: float, rngs: nnx.Rngs) -> None:
        bound, scale = 1 / math.sqrt(in_features), sigma0 / math.sqrt(in_features)
        kernel_key, bias_key = jax.random.split(rngs.params())
        shape = (in_features, out_features)
        self.kernel = nnx.Param(jax.random.uniform(kernel_key, shape, minval=-bound, maxval=bound))
        self.bias = nnx.Param(jax.random.uniform(bias_key, (out_features,), minval=-bound, maxval=bound))
        self.kernel_sigma = nnx.Param(jnp.full(shape, scale))
        self.bias_sigma = nnx.Param(jnp.full((out_features,), scale))
        self.rngs = nnx.Rngs(noise=rngs.params())
        self.deterministic = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "B P"]) -> Float[Array, "B Q"]:
        y = x @ self.kernel[...] + self.bias[...]
        if self.deterministic:
            return y
        keys = jax.random.split(self.rngs.noise())
        noise_in, noise_out = (
            _scaled(jax.random.normal(key, (size,))) for key, size in zip(keys, self.kernel.shape, strict=True)
        )
        return y + ((x * noise_in) @ self.kernel_sigma[...]) * noise_out + self.bias_sigma[...] * noise_out


def _scaled(noise: Float[Array, "N"]) -> Float[Array, "N"]:
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


class BatchRenorm(nnx.Module):
    """Batch normalization whose outputs in training stay near the outputs in evaluation.

    Source: Ioffe (2017), Algorithm 1, arXiv:1702.03275: with mean μ_B and standard deviation σ_B of the batch and the
    running μ and σ, the output is γ x̂ + β, where
        x̂ = (x - μ_B) / σ_B · r + d,  r = clip(σ_B / σ, 1 / r_max, r_max),  d = clip((μ_B - μ) / σ, -d_max, d_max),
    and r and d are constant. In evaluation x̂ = (x - μ) / σ. Deviations, as in CrossQ (Bhatt et al., 2024,
    arXiv:1902.05605): r = 1 and d = 0 in the first `warm_up` calls, and from then on the limits have their final
    values; the running statistics are the mean and the variance.

    Args:
        momentum: the share of the old running statistics in the new running statistics.
        epsilon: added to variances.
    """

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        r_max: float = 3.0,
        d_max: float = 5.0,
        warm_up: int = 100_000,
    ) -> None:
        self.momentum, self.epsilon, self.r_max, self.d_max, self.warm_up = momentum, epsilon, r_max, d_max, warm_up
        self.scale = nnx.Param(jax.device_put(np.ones(features, np.float32)))
        self.bias = nnx.Param(jax.device_put(np.zeros(features, np.float32)))
        self.mean = nnx.BatchStat(jax.device_put(np.zeros(features, np.float32)))
        self.var = nnx.BatchStat(jax.device_put(np.ones(features, np.float32)))
        self.calls = nnx.BatchStat(jax.device_put(np.int32(0)))
        self.use_running_average = False  # set by the model's `eval()` and `train()`

    def __call__(self, x: Float[Array, "*S F"]) -> Float[Array, "*S F"]:
        mean, deviation = self.mean[...], jnp.sqrt(self.var[...] + self.epsilon)
        if self.use_running_average:
            return (x - mean) / deviation * self.scale[...] + self.bias[...]
        rows = tuple(range(x.ndim - 1))
        of_batch, variance = x.mean(axis=rows), x.var(axis=rows)
        of_batch_deviation = jnp.sqrt(variance + self.epsilon)
        warm = self.calls[...] >= self.warm_up
        r = jnp.where(warm, jnp.clip(of_batch_deviation / deviation, 1 / self.r_max, self.r_max), 1.0)
        d = jnp.where(warm, jnp.clip((of_batch - mean) / deviation, -self.d_max, self.d_max), 0.0)
        r, d = lax.stop_gradient((r, d))
        self.mean[...] = self._moved(mean, of_batch)
        self.var[...] = self._moved(self.var[...], variance)
        self.calls[...] = jnp.minimum(self.calls[...] + 1, self.warm_up)
        return ((x - of_batch) / of_batch_deviation * r + d) * self.scale[...] + self.bias[...]

    def _moved(self, running: Array, new: Array) -> Array:
        return self.momentum * running + (1 - self.momentum) * new


def make_norms(kind: Normalization | None, widths: Sequence[int], rngs: nnx.Rngs) -> list[nnx.Module]:
    """Returns one normalization layer for each of these widths; an empty list for the kind None."""
    if kind == "layer":
        return [nnx.LayerNorm(width, rngs=rngs) for width in widths]
    if kind == "batch":
        return [nnx.BatchNorm(width, momentum=0.99, rngs=rngs) for width in widths]
    return [BatchRenorm(width) for width in widths if kind == "batch_renorm"]


def normalized_activation(
    x: Array, norm: nnx.Module | None, activation: Callable[[Array], Array], *, norm_first: bool
) -> Array:
    """Returns the outputs of a layer after its activation and its normalization, if any."""
    if norm is None:
        return activation(x)
    normalize: Any = norm
    return activation(normalize(x)) if norm_first else normalize(activation(x))


class MLP(nnx.Module):
    """Dense layers, each followed by the activation and by the normalization, if any (see `model.normalization`).

    With `norm_first` the normalization precedes the activation. With dropout the order is: dense layer, dropout,
    normalization, activation. `features` is the width of the output.
    """

    def __init__(
        self,
        in_features: int,
        hiddens: Sequence[int],
        activation: Activation,
        normalization: Normalization | None = None,
        *,
        norm_first: bool = False,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        widths = (in_features, *hiddens)
        self.layers = nnx.List([dense(a, b, gain=HIDDEN_GAIN, rngs=rngs) for a, b in itertools.pairwise(widths)])
        # Batch normalization also normalizes the input.
        self.norms = nnx.List(make_norms(normalization, widths[1:] if normalization == "layer" else widths, rngs))
        # Each dropout layer has its own random stream, whose seed is drawn like the initial weights.
        streams = [nnx.Rngs(dropout=rngs.params()) for _ in hiddens] if dropout else []
        self.dropouts = nnx.List([nnx.Dropout(dropout, rngs=stream) for stream in streams])
        self.activation: Activation = activation
        self.norm_first = norm_first or dropout > 0
        self.features = widths[-1]

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B H"]:
        activation, norms = ACTIVATIONS[self.activation], [*self.norms]
        if len(norms) > len(self.layers):
            x = norms.pop(0)(x)
        for layer, norm, drop in itertools.zip_longest(self.layers, norms, self.dropouts):
            x = layer(x) if drop is None else drop(layer(x))
            x = normalized_activation(x, norm, activation, norm_first=self.norm_first)
        return x


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
    instead of 64 for 8 × 8 pixels at stride 4.
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
