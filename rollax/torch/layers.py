"""Layers as in JAX: an MLP, residual blocks, a CNN and recurrent layers."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollax.models.config import Activation, ConvFilter, LayersConfig, Normalization
from rollax.models.convolution_plan import convolution_plan
from rollax.models.features import BLOCK_WIDENING, HIDDEN_GAIN

# At each call, cuDNN copies the weights into one block. PyTorch advises flatten_parameters, which these layers lack.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous", module=re.escape(__name__))


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")  # as in JAX


def _linear(x: Tensor) -> Tensor:
    return x


# Functions of this module instead of lambdas, so that torch.save and pickle can store the models.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": functional.relu,
    "elu": functional.elu,
    "gelu": _gelu,
    "silu": functional.silu,
    "linear": _linear,
}


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def dense(in_features: int, out_features: int, *, gain: float) -> nn.Linear:
    """A linear layer with an orthogonal weight of gain `gain` and a zero bias."""
    return _orthogonal(nn.Linear(in_features, out_features), gain)


def _orthogonal(layer: Layer, gain: float) -> Layer:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization with the running variance of Flax: a mean of variances of batches, without N / (N - 1)."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._add(*torch.var_mean(x, dim=0, correction=0))
        return functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)

    @torch.no_grad()
    def _add(self, variance: Tensor, mean: Tensor) -> None:
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)
        self.num_batches_tracked += 1


class BatchRenorm(BatchNorm):
    """Batch renormalization, with the equations and arguments of `rollax.models.batch_renorm.BatchRenorm`."""

    def __init__(self, features: int, *, r_max: float = 3.0, d_max: float = 5.0, warm_up: int = 100_000) -> None:
        super().__init__(features, eps=1e-3, momentum=0.01)
        self.r_max, self.d_max, self.warm_up = r_max, d_max, warm_up

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        of_batch = (variance + self.eps).sqrt()
        with torch.no_grad():
            deviation, warm = (self.running_var + self.eps).sqrt(), self.num_batches_tracked >= self.warm_up
            r = torch.where(warm, (of_batch / deviation).clamp(1 / self.r_max, self.r_max), 1.0)
            d = torch.where(warm, ((mean - self.running_mean) / deviation).clamp(-self.d_max, self.d_max), 0.0)
        self._add(variance, mean)
        return ((x - mean) / of_batch * r + d) * self.weight + self.bias


def _make_norms(kind: Normalization | None, widths: Sequence[int]) -> nn.ModuleList:
    """One normalization layer for each of these widths; no layers if `kind` is None."""
    if kind == "layer":
        return nn.ModuleList([nn.LayerNorm(width, eps=1e-6) for width in widths])
    if kind == "batch":
        return nn.ModuleList([BatchNorm(width, momentum=0.01) for width in widths])
    return nn.ModuleList([BatchRenorm(width) for width in widths if kind == "batch_renorm"])


def _normalized_activation(
    x: Tensor, norm: nn.Module | None, activation: Callable[[Tensor], Tensor], *, norm_first: bool
) -> Tensor:
    """The outputs [..., F] of a layer after its activation and its normalization, if any."""
    if norm is None:
        return activation(x)
    if not norm_first:
        return norm(activation(x))
    return activation(norm(x.reshape(-1, x.shape[-1])).reshape(x.shape))


class MLP(nn.Module):
    """Dense layers, each followed by the activation and, if `normalization` is not None, by a normalization layer.

    `normalization` is a value of the config key `model.normalization`. Batch normalization and renormalization also
    normalize the inputs. With `norm_first` the normalization precedes the activation. `features` is the width of the
    output.
    """

    def __init__(
        self,
        in_features: int,
        hiddens: Sequence[int],
        activation: Activation,
        normalization: Normalization | None = None,
        *,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        widths = (in_features, *hiddens)
        self.layers = nn.ModuleList([dense(a, b, gain=HIDDEN_GAIN) for a, b in itertools.pairwise(widths)])
        self.norms = _make_norms(normalization, widths[1:] if normalization == "layer" else widths)
        self._norm_first = norm_first
        self._activation = ACTIVATIONS[activation]
        self.features = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        norms = [*self.norms]
        if len(norms) > len(self.layers):
            x = norms.pop(0)(x)
        for layer, norm in itertools.zip_longest(self.layers, norms):
            x = _normalized_activation(layer(x), norm, self._activation, norm_first=self._norm_first)
        return x


class RunningNorm(nn.Module):
    """Standardizes F features by running statistics, with the equations of `rollax.models.simba.RunningNorm`."""

    mean: Tensor
    var: Tensor
    calls: Tensor
    limit = 10.0

    def __init__(self, features: int, *, epsilon: float = 1e-8, horizon: int = 1000) -> None:
        super().__init__()
        self.epsilon, self.horizon = epsilon, horizon
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))

    @torch.no_grad()
    def _add(self, x: Tensor) -> None:
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        self.calls += 1
        self.calls.clamp_(max=self.horizon)
        share, apart = 1 / self.calls, mean - self.mean
        self.mean += share * apart
        self.var.add_(share * apart**2).mul_(1 - share).add_(share * variance)

    def forward(self, x: Tensor) -> Tensor:
        """[B, F] standardized rows."""
        if self.training:
            self._add(x)
        return ((x - self.mean) * (self.var + self.epsilon).rsqrt()).clamp(-self.limit, self.limit)


class ResidualMLP(nn.Module):
    """A dense layer and residual blocks, with the arguments of `rollax.models.simba.ResidualMLP`."""

    def __init__(
        self, in_features: int, widths: Sequence[int], activation: Activation, normalization: Normalization | None
    ) -> None:
        super().__init__()
        self.features = features = widths[0]
        hidden = BLOCK_WIDENING * features
        self.input = dense(in_features, features, gain=1.0)
        self.first = nn.ModuleList([_he_dense(features, hidden) for _ in widths])
        self.second = nn.ModuleList([_he_dense(hidden, features) for _ in widths])
        normalized = [features] * (len(widths) + 1)
        if normalization != "layer":
            normalized = [in_features, *normalized]
        self.norms = _make_norms(normalization, normalized)
        self._activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        norms = [*self.norms] or [nn.Identity()] * (len(self.first) + 1)
        if len(norms) > len(self.first) + 1:
            x = norms.pop(0)(x)
        x = self.input(x)
        for first, second, norm in zip(self.first, self.second, norms, strict=False):
            x = x + second(self._activation(first(norm(x))))
        return norms[-1](x)


def _he_dense(in_features: int, out_features: int) -> nn.Linear:
    layer = nn.Linear(in_features, out_features)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


def make_mlp(in_features: int, hiddens: Sequence[int], config: LayersConfig) -> MLP | ResidualMLP:
    """Layers with the activation and normalization of the config, or residual blocks."""
    kinds = config.fcnet_activation, config.normalization
    if config.residual_blocks and hiddens:
        return ResidualMLP(in_features, hiddens, *kinds)
    return MLP(in_features, hiddens, *kinds, norm_first=config.normalize_before_activation)


class CNN(nn.Module):
    """Convolutions without padding and one dense layer, with the arguments of `rollax.models.images.CNN`."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        filters: Sequence[ConvFilter] | None,
        dense_features: int | None,
        activation: Activation,
        normalization: Normalization | None,
    ) -> None:
        super().__init__()
        plan = convolution_plan(shape, filters, dense_features)
        layers = [nn.Conv2d(channels, out, kernel, stride) for channels, out, kernel, stride in plan.convolutions]
        self.convolutions = nn.ModuleList([_orthogonal(layer, HIDDEN_GAIN) for layer in layers])
        self.features = plan.dense_features
        self.dense = dense(plan.outputs, self.features, gain=HIDDEN_GAIN)
        self.norms = _make_norms(normalization, [*(out for _, out, _, _ in plan.convolutions), self.features])
        self._activation = ACTIVATIONS[activation]

    def forward(self, images: Tensor) -> Tensor:
        """[B, features] for images [B, height, width, channels]."""
        norms = [*self.norms] or [None] * (len(self.convolutions) + 1)
        for convolution, norm in zip(self.convolutions, norms[:-1], strict=True):
            # The permuted images are a view in the memory format `channels_last`. The outputs have JAX's order of axes,
            # so that dense layers have the same weights as in JAX.
            x = convolution(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            images = _normalized_activation(x, norm, self._activation, norm_first=True)
        features = self.dense(images.flatten(1))
        return _normalized_activation(features, norms[-1], self._activation, norm_first=True)


class Recurrent(nn.Module):
    """The base of LSTM and GRU: maps B concatenated sequences of T rows from [B·T, in_features] to [B·T, features]."""

    gates: int
    parts: int
    """Number of arrays of the state."""

    def __init__(self, in_features: int, features: int) -> None:
        super().__init__()
        self.features = features
        self.input = nn.Linear(in_features, self.gates * features)
        self.recurrent = nn.Linear(features, self.gates * features)
        for layer in (self.input, self.recurrent):
            for gate in layer.weight.detach().chunk(self.gates):
                nn.init.orthogonal_(gate)
            nn.init.zeros_(layer.bias)

    @staticmethod
    def _by_sequence(x: Tensor, sequences: int) -> Tensor:
        steps = len(x) // sequences if sequences else 1  # 1 for an empty batch
        return x.reshape(sequences, steps, x.shape[-1])


class LSTM(Recurrent):
    """Long short-term memory, with the equations of `rollax.models.recurrent.LSTM`."""

    gates = 4
    parts = 2

    def __init__(self, in_features: int, features: int) -> None:
        super().__init__(in_features, features)
        nn.init.ones_(self.input.bias.detach()[features : 2 * features])
        self.recurrent.register_parameter("bias", None)
        self.register_buffer("_no_bias", torch.zeros(4 * features), persistent=False)

    def forward(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[B·T, H] outputs, and the state after each sequence, for x [B·T, F] and a state of two arrays [B, H]."""
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, self._no_bias]
        inputs = self._by_sequence(x, len(state[0]))
        out, h, c = torch.lstm(
            inputs, [_one_layer(part) for part in state], weights, True, 1, 0.0, self.training, False, True
        )
        return out.reshape(len(x), self.features), (h[0], c[0])


class GRU(Recurrent):
    """Gated recurrent unit, with the equations of `rollax.models.recurrent.GRU`."""

    gates = 3
    parts = 1

    def forward(self, x: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """[B·T, H] outputs, and the state after each sequence, for x [B·T, F] and a state of one array [B, H]."""
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
        inputs = self._by_sequence(x, len(state[0]))
        out, h = torch.gru(inputs, _one_layer(state[0]), weights, True, 1, 0.0, self.training, False, True)
        return out.reshape(len(x), self.features), (h[0],)


def _one_layer(part: Tensor) -> Tensor:
    """[1, B, H] from one array [B, H] of the state, in contiguous memory, which cuDNN requires."""
    return part[None].contiguous()
