"""Action distributions in PyTorch: `ActionDistribution` with tensors. NumPy arrays are converted to tensors.

The classes of the same names in `rollax.models.distributions` document equations, limits and "Deviations" from sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from rollax.models.distributions import (
    ACTION_LIMIT,
    LOWEST_LOGIT,
    MASKED_LOGIT,
    NOISE_MAX,
    NOISE_MIN,
    PADDING_LOGIT,
    SQUASHED_LOG_STD_RANGE,
    ActionDistribution,
    Actions,
    Bits,
    Choices,
    Normals,
    OneChoice,
)
from rollax.models.distributions.composite import Composite
from rollax.models.distributions.factory import distribution_of
from rollax.torch.weights import as_tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = (torch.tensor(column) for column in np.polynomial.hermite_e.hermegauss(16))
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def make_distribution(action_space: spaces.Space, *, squash: bool = False) -> ActionDistribution:
    """The distribution over the actions of a space; spaces and errors are as in JAX's `make_distribution`."""
    return distribution_of(action_space, _CLASSES.__getitem__, squash=squash)


class TorchDistribution(ActionDistribution):
    """An `ActionDistribution` of tensors [B, ...], which are on the device of `inputs`."""

    def sample(self, inputs: Any, noise: Any) -> Actions:
        inputs = as_tensor(inputs)
        return super().sample(inputs, as_tensor(noise, inputs.device))

    def mode(self, inputs: Any) -> Actions:
        return super().mode(as_tensor(inputs))

    def logp(self, inputs: Any, actions: Actions) -> Tensor:
        return super().logp(as_tensor(inputs), actions)


@dataclass(frozen=True)
class Categorical(OneChoice, TorchDistribution):
    """A distribution over one choice; see `OneChoice`."""

    def _sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        return _inverse_cdf(inputs, noise[:, 0]) + self.start

    def _mode(self, inputs: Tensor) -> Tensor:
        return inputs.argmax(dim=-1).to(torch.int32) + self.start

    def _logp(self, inputs: Tensor, actions: Any) -> Tensor:
        self._check("actions", actions, inputs.shape[:1])
        return _choice_logp(inputs, as_tensor(actions, inputs.device).to(torch.int64) - self.start)

    def _entropy(self, inputs: Tensor) -> Tensor:
        return _entropy(inputs)

    def _kl(self, inputs: Tensor, other_inputs: Tensor) -> Tensor:
        return _kl(inputs, other_inputs)

    def _mask(self, inputs: Tensor, action_mask: Tensor) -> Tensor:
        valid = as_tensor(action_mask, inputs.device) > 0
        return _masked(inputs, valid | ~valid.any(dim=-1, keepdim=True))


@dataclass(frozen=True)
class MultiCategorical(Choices, TorchDistribution):
    """A distribution over several choices; see `Choices`."""

    def _sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        choices = _inverse_cdf(self._padded(inputs), noise)
        return self._actions(torch.minimum(choices, inputs.new_tensor(self.nvec, dtype=torch.int32) - 1))

    def _mode(self, inputs: Tensor) -> Tensor:
        return self._actions(self._padded(inputs).argmax(dim=-1).to(torch.int32))

    def _logp(self, inputs: Tensor, actions: Any) -> Tensor:
        rows = len(inputs)
        self._check("actions", actions, (rows, *self.shape))
        # torch.uint16 and torch.uint32 have no subtraction.
        choices = as_tensor(actions, inputs.device).to(torch.int64).reshape(rows, len(self.nvec))
        return _choice_logp(self._padded(inputs), choices - choices.new_tensor(self.start)).sum(-1)

    def _entropy(self, inputs: Tensor) -> Tensor:
        return _entropy(self._padded(inputs)).sum(-1)

    def _kl(self, inputs: Tensor, other_inputs: Tensor) -> Tensor:
        return _kl(self._padded(inputs), self._padded(other_inputs)).sum(-1)

    def _mask(self, inputs: Tensor, action_mask: Tensor) -> Tensor:
        return _masked(inputs, as_tensor(action_mask, inputs.device) > 0)

    def _padded(self, inputs: Tensor) -> Tensor:
        """[B, D, K] the logits of each choice, padded to the largest number K of options."""
        width = max(self.nvec)
        if min(self.nvec) == width:
            return inputs.reshape(len(inputs), len(self.nvec), width)
        parts = inputs.split(self.nvec, dim=1)
        return torch.stack([functional.pad(p, (0, width - p.shape[1]), value=PADDING_LOGIT) for p in parts], dim=1)

    def _actions(self, choices: Tensor) -> Tensor:
        return (choices + choices.new_tensor(self.start)).reshape(len(choices), *self.shape)


@dataclass(frozen=True)
class Bernoulli(Bits, TorchDistribution):
    """A distribution over bits; see `Bits`."""

    def _sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        return self._actions(noise.clamp(NOISE_MIN, NOISE_MAX) < torch.sigmoid(inputs))

    def _mode(self, inputs: Tensor) -> Tensor:
        return self._actions(inputs > 0)

    def _logp(self, inputs: Tensor, actions: Any) -> Tensor:
        rows = len(inputs)
        self._check("actions", actions, (rows, *self.shape))
        bits = as_tensor(actions, inputs.device).reshape(rows, self.num_inputs)
        off = torch.where(bits == 0, functional.logsigmoid(-inputs), MASKED_LOGIT)
        return torch.where(bits == 1, functional.logsigmoid(inputs), off).sum(-1)

    def _entropy(self, inputs: Tensor) -> Tensor:
        size = inputs.abs()
        return (functional.softplus(-size) + size * torch.sigmoid(-size)).sum(-1)

    def _kl(self, inputs: Tensor, other_inputs: Tensor) -> Tensor:
        on, off = torch.sigmoid(inputs), torch.sigmoid(-inputs)
        on_ratio = functional.logsigmoid(inputs) - functional.logsigmoid(other_inputs)
        off_ratio = functional.logsigmoid(-inputs) - functional.logsigmoid(-other_inputs)
        return (on * on_ratio + off * off_ratio).sum(-1)

    def _actions(self, bits: Tensor) -> Tensor:
        return bits.to(torch.int8).reshape(len(bits), *self.shape)


@dataclass(frozen=True)
class DiagGaussian(Normals, TorchDistribution):
    """A distribution over independent normal numbers; see `Normals`."""

    def _sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self._split(inputs)
        return self._actions(mean + log_std.exp() * _normal(noise))

    def _sample_and_logp(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._split(inputs)
        z = _normal(noise)
        return self._actions(mean + log_std.exp() * z), _normal_logp(z, log_std).sum(-1)

    def _mode(self, inputs: Tensor) -> Tensor:
        return self._actions(self._split(inputs)[0])

    def _logp(self, inputs: Tensor, actions: Any) -> Tensor:
        mean, log_std = self._split(inputs)
        return _normal_logp((self._flat(inputs, actions) - mean) * (-log_std).exp(), log_std).sum(-1)

    def _entropy(self, inputs: Tensor) -> Tensor:
        return (self._split(inputs)[1] + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def _kl(self, inputs: Tensor, other_inputs: Tensor) -> Tensor:
        mean, log_std = self._split(inputs)
        other_mean, other_log_std = self._split(other_inputs)
        log_ratio = log_std - other_log_std
        distance = (mean - other_mean) * (-other_log_std).exp()
        return (0.5 * ((2 * log_ratio).exp() + distance**2 - 1) - log_ratio).sum(-1)

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = inputs.split(self.num_noise, dim=1)
        return mean, log_std.clamp(*self.log_std_range)

    def _actions(self, flat: Tensor) -> Tensor:
        return flat.reshape(len(flat), *self.shape)

    def _flat(self, inputs: Tensor, actions: Any) -> Tensor:
        rows = len(inputs)
        self._check("actions", actions, (rows, *self.shape))
        return as_tensor(actions, inputs.device).to(inputs.dtype).reshape(rows, self.num_noise)


@dataclass(frozen=True)
class SquashedGaussian(DiagGaussian):
    """The tanh of independent normal numbers: actions in (-1, 1). `inputs` are as in DiagGaussian."""

    bounded: ClassVar[bool] = True
    log_std_range: ClassVar[tuple[float, float]] = SQUASHED_LOG_STD_RANGE

    def _sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        return super()._sample(inputs, noise).tanh()

    def _sample_and_logp(self, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._split(inputs)
        z = _normal(noise)
        u = mean + log_std.exp() * z
        return self._actions(u.tanh()), (_normal_logp(z, log_std) - _log_tanh_slope(u)).sum(-1)

    def _mode(self, inputs: Tensor) -> Tensor:
        return super()._mode(inputs).tanh()

    def _logp(self, inputs: Tensor, actions: Any) -> Tensor:
        mean, log_std = self._split(inputs)
        u = torch.atanh(self._flat(inputs, actions).clamp(-ACTION_LIMIT, ACTION_LIMIT))
        return (_normal_logp((u - mean) * (-log_std).exp(), log_std) - _log_tanh_slope(u)).sum(-1)

    def _entropy(self, inputs: Tensor) -> Tensor:
        mean, log_std = self._split(inputs)
        u = mean[..., None] + log_std.exp()[..., None] * _NODES.to(inputs)
        return super()._entropy(inputs) + (_log_tanh_slope(u) * _WEIGHTS.to(inputs)).sum((-2, -1))


@dataclass(frozen=True)
class Joint(Composite, TorchDistribution):
    """Independent distributions of the parts of a Dict or Tuple space, possibly nested."""

    def _split(self, columns: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        return columns.split(list(widths), dim=1)

    def _concatenated(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts), dim=1)


_CLASSES = {
    kind.__name__: kind for kind in (Categorical, MultiCategorical, Bernoulli, DiagGaussian, SquashedGaussian, Joint)
}


def _masked(logits: Tensor, valid: Tensor) -> Tensor:
    """Logits or values of choices, with invalid choices far below all others; NaN stays NaN."""
    return torch.where(valid, logits.clamp(min=LOWEST_LOGIT), MASKED_LOGIT)


def _choice_logp(logits: Tensor, choices: Tensor) -> Tensor:
    """Log-probability of each choice; MASKED_LOGIT for a choice out of range."""
    size = logits.shape[-1]
    inside = (choices >= 0) & (choices < size)
    logp = logits.log_softmax(dim=-1).gather(-1, choices.clamp(0, size - 1)[..., None])[..., 0]
    return torch.where(inside, logp, MASKED_LOGIT)


def _inverse_cdf(logits: Tensor, noise: Tensor) -> Tensor:
    """The first possible choice whose cumulative probability exceeds the noise, else the last possible choice."""
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    cumulative = weights.cumsum(dim=-1)
    possible = weights != 0  # NaN counts as possible: the action is in range, and outputs are checked later
    hits = possible & (cumulative > noise[..., None] * cumulative[..., -1:])
    size = logits.shape[-1]
    index = torch.arange(size, device=logits.device)
    last = torch.where(possible, index, -1).amax(dim=-1)
    first = torch.where(hits, index, size).amin(dim=-1)
    return torch.where(first < size, first, last).to(torch.int32)


def _entropy(logits: Tensor) -> Tensor:
    log_probs = _log_probs(logits)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def _kl(logits: Tensor, other: Tensor) -> Tensor:
    log_probs = _log_probs(logits)
    return (log_probs.exp() * (log_probs - _log_probs(other))).sum(dim=-1)


def _log_probs(logits: Tensor) -> Tensor:
    # A model may mask with minus infinity, which is replaced because 0 · ∞ is NaN.
    return logits.clamp(min=PADDING_LOGIT).log_softmax(dim=-1)


def _normal(noise: Tensor) -> Tensor:
    """Inverse normal CDF of uniform noise, within ±5.3."""
    return torch.special.ndtri(noise.clamp(NOISE_MIN, NOISE_MAX))


def _normal_logp(z: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * z**2 - log_std - _HALF_LOG_2PI


def _log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh²(u))."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
