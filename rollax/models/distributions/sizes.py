"""Parameters and sizes of distributions, shared by JAX and PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rollax.models.distributions.base import ActionDistribution

SQUASHED_LOG_STD_RANGE = (-20.0, 2.0)
ACTION_LIMIT = 1.0 - 1e-6
"""Squashed actions are clipped to ± this number before their density is computed."""


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
