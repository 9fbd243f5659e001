"""`ActionDistribution`: the interface of all action distributions, with their parameters, in JAX and in PyTorch.

This module imports neither library.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from rollax.errors import ShapeError, SpaceError

Array = Any
"""An array of the library of the subclass: JAX or PyTorch."""

Actions = Any
"""Columns of an action space: an array [B, ...], or a dict or tuple of columns (see `rollax.core.spaces`)."""

MASKED_LOGIT = -1e30
"""Stands for log 0 in logits and log-probabilities: its `exp` is exactly 0, and sums and gradients stay finite."""

LOWEST_LOGIT = 0.5 * MASKED_LOGIT
"""The least logit or value of a valid choice, so far above `MASKED_LOGIT` that masked choices are never drawn."""

PADDING_LOGIT = 2 * MASKED_LOGIT
"""The logit of padding, so far below `MASKED_LOGIT` that padding is never drawn, even if all choices are masked."""

# Uniform noise may be 0 or 1 after rounding to float32; its transforms are finite between these limits.
NOISE_MIN = 2.0**-24
NOISE_MAX = 1.0 - 2.0**-24

SQUASHED_LOG_STD_RANGE = (-20.0, 2.0)
ACTION_LIMIT = 1.0 - 1e-6
"""Squashed actions are clipped to ± this number before their density is computed."""


class ActionDistribution(ABC):
    """Distributions over the actions of one space; each row of `inputs` [B, num_inputs] has one set of parameters.

    Instances are immutable and hashable, so that they can be static arguments of compiled functions. Methods are
    batch-first, pure and differentiable in `inputs`; they raise ShapeError for wrong shapes, at trace time.
    """

    one_choice: ClassVar[bool] = False
    """Whether `inputs` are the logits of a single choice."""
    bounded: ClassVar[bool] = False
    """Whether all actions are in [-1, 1], so that they need not be clipped to bounds."""

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """Width of `inputs`, the model's outputs."""

    @property
    @abstractmethod
    def num_noise(self) -> int:
        """Number of uniform random numbers that `sample` needs for one row."""

    @property
    def num_mask(self) -> int:
        """Width of `action_mask`: one entry per choice of each discrete action; 0 without discrete actions."""
        return 0

    def sample(self, inputs: Float[Array, "B N"], noise: Float[Array, "B U"]) -> Actions:
        """One action per row, a deterministic function of the noise.

        Gaussian samples are differentiable in `inputs` (reparametrized).

        Args:
            noise: [B, num_noise] independent uniform float32 numbers in [0, 1]; Gaussians clip them to
                [2**-24, 1 - 2**-24].
        Returns:
            Columns of the action space, [B, ...], without masked choices.
        """
        self._check_inputs(inputs)
        self._check("noise", noise, (inputs.shape[0], self.num_noise))
        return self._sample(inputs, noise)

    def sample_and_logp(
        self, inputs: Float[Array, "B N"], noise: Float[Array, "B U"]
    ) -> tuple[Actions, Float[Array, "B"]]:
        """A sample and its log-probability; for Gaussians cheaper and more accurate than `sample` and `logp`.

        A SquashedGaussian's value differs from `logp` for actions within 1e-6 of ±1, which `logp` clips. Importance
        ratios use `logp` for both policies, reparametrized gradients use this method.
        """
        self._check_inputs(inputs)
        self._check("noise", noise, (inputs.shape[0], self.num_noise))
        return self._sample_and_logp(inputs, noise)

    def mode(self, inputs: Float[Array, "B N"]) -> Actions:
        """The greedy action of each row, [B, ...]: the most probable choice, or the (squashed) mean."""
        self._check_inputs(inputs)
        return self._mode(inputs)

    def logp(self, inputs: Float[Array, "B N"], actions: Actions) -> Float[Array, "B"]:
        """Log-probability (or log-density) of one action per row, summed over the parts of the action.

        A discrete action that is masked or out of range gets about `MASKED_LOGIT` instead of minus infinity.
        """
        self._check_inputs(inputs)
        return self._logp(inputs, actions)

    def entropy(self, inputs: Float[Array, "B N"]) -> Float[Array, "B"]:
        """Entropy of each row in nats; it is exact except for squashed Gaussians."""
        self._check_inputs(inputs)
        return self._entropy(inputs)

    def kl(self, inputs: Float[Array, "B N"], other_inputs: Float[Array, "B N"]) -> Float[Array, "B"]:
        """KL(p || q) of each row in nats, with parameters `inputs` of p and `other_inputs` of q."""
        self._check_inputs(inputs)
        self._check("other_inputs", other_inputs, (inputs.shape[0], self.num_inputs))
        return self._kl(inputs, other_inputs)

    def mask(
        self, inputs: Float[Array, "B N"], action_mask: Float[Array, "B M"] | Int[Array, "B M"] | Bool[Array, "B M"]
    ) -> Float[Array, "B N"]:
        """Inputs with a probability of exactly 0 for masked choices, whose logits have a gradient of 0.

        Logits of valid choices are at least `LOWEST_LOGIT`, so that this is true for any logits.

        Args:
            action_mask: [B, num_mask] 1 for a valid choice, 0 for an invalid one; each discrete action needs a valid
                choice, which cannot be checked while tracing. For a single discrete action, a row of zeros, as the last
                observation of an episode may have, allows all choices.
        Raises:
            SpaceError: the action space has no discrete choices.
        """
        if not self.num_mask:
            what = "The observation has an action mask, but the action space has no discrete choices."
            expected = "Discrete or MultiDiscrete actions, or a Dict or Tuple with some"
            fix = "leave 'action_mask' out of the observation"
            raise SpaceError(what, f"{type(self).__name__}.mask", self, expected=expected, fix=fix)
        self._check_inputs(inputs)
        self._check("action_mask", action_mask, (inputs.shape[0], self.num_mask))
        return self._mask(inputs, action_mask)

    @abstractmethod
    def _sample(self, inputs: Array, noise: Array) -> Actions: ...

    def _sample_and_logp(self, inputs: Array, noise: Array) -> tuple[Actions, Array]:
        actions = self._sample(inputs, noise)
        return actions, self._logp(inputs, actions)

    @abstractmethod
    def _mode(self, inputs: Array) -> Actions: ...

    @abstractmethod
    def _logp(self, inputs: Array, actions: Actions) -> Array: ...

    @abstractmethod
    def _entropy(self, inputs: Array) -> Array: ...

    @abstractmethod
    def _kl(self, inputs: Array, other_inputs: Array) -> Array: ...

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        raise NotImplementedError  # subclasses with `num_mask` above 0 override this method

    def _check_inputs(self, inputs: Array) -> None:
        self._check("inputs", inputs, (*np.shape(inputs)[:1], self.num_inputs))

    def _check(self, name: str, array: Array, expected: tuple[int, ...]) -> None:
        got = tuple(np.shape(array))
        if got != expected:
            fix = "pass one row per action; num_inputs, num_noise and num_mask are the widths of the flat arguments"
            raise ShapeError(f"{type(self).__name__} got {name} of the wrong shape.", self, got).expected(expected, fix)


@dataclass(frozen=True)
class OneChoice(ActionDistribution):
    """One of `n` integers from `start`. `inputs` are logits, not necessarily normalized."""

    one_choice: ClassVar[bool] = True

    n: int
    start: int = 0

    @property
    def num_inputs(self) -> int:
        return self.n

    @property
    def num_noise(self) -> int:
        return 1

    @property
    def num_mask(self) -> int:
        return self.n


@dataclass(frozen=True)
class Choices(ActionDistribution):
    """An array of independent choices of different sizes, in C order. `inputs` are their concatenated logits."""

    nvec: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]  # of one row of actions

    @property
    def num_inputs(self) -> int:
        return sum(self.nvec)

    @property
    def num_noise(self) -> int:
        return len(self.nvec)

    @property
    def num_mask(self) -> int:
        return sum(self.nvec)


@dataclass(frozen=True)
class Bits(ActionDistribution):
    """An array of independent bits. `inputs` are the flattened logits of a 1; actions are int8."""

    shape: tuple[int, ...]

    @property
    def num_inputs(self) -> int:
        return math.prod(self.shape)

    @property
    def num_noise(self) -> int:
        return self.num_inputs


@dataclass(frozen=True)
class Normals(ActionDistribution):
    """An array of independent normal numbers. `inputs` are the means, then the logarithms of the standard deviations.

    Inputs are flattened in C order. `log_std` is clipped to [-20, 10], so that KL divergences are finite in float32.
    Actions are not clipped.
    """

    shape: tuple[int, ...]

    log_std_range: ClassVar[tuple[float, float]] = (-20.0, 10.0)

    @property
    def num_inputs(self) -> int:
        return 2 * self.num_noise

    @property
    def num_noise(self) -> int:
        return math.prod(self.shape)
