"""The distribution of an action space, for any library of arrays; `Composite`, for a Dict or Tuple space."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rollax.core.spaces import bounds, check_space, path_text
from rollax.errors import ShapeError, SpaceError
from rollax.models.distributions.base import ActionDistribution, Actions, Array


class Kinds(NamedTuple):
    """The classes of one library of arrays, by kind of action space."""

    categorical: Callable[..., ActionDistribution]
    multi_categorical: Callable[..., ActionDistribution]
    bernoulli: Callable[..., ActionDistribution]
    gaussian: Callable[..., ActionDistribution]
    squashed_gaussian: Callable[..., ActionDistribution]
    joint: Callable[..., ActionDistribution]


def distribution_of(action_space: spaces.Space, kinds: Kinds, *, squash: bool) -> ActionDistribution:
    """Returns the distribution over the actions of a space; see `make_distribution`."""
    check_space(action_space, "action_space")
    return _make(action_space, kinds, squash, "action_space")


def _make(space: Any, kinds: Kinds, squash: bool, where: str) -> ActionDistribution:
    if isinstance(space, spaces.Dict):
        parts = (_make(part, kinds, squash, where + path_text((key,))) for key, part in space.spaces.items())
        return kinds.joint(tuple(parts), tuple(space.spaces))
    if isinstance(space, spaces.Tuple):
        numbered = enumerate(space.spaces)
        return kinds.joint(tuple(_make(part, kinds, squash, where + path_text((i,))) for i, part in numbered))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        _check_32_bits(space, where)
    if isinstance(space, spaces.Discrete):
        return kinds.categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (tuple(int(i) for i in values.ravel()) for values in (space.nvec, space.start))
        return kinds.multi_categorical(nvec, start, space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return kinds.bernoulli(tuple(int(size) for size in space.shape))
    check_box(space, where, bounded=squash)
    return (kinds.squashed_gaussian if squash else kinds.gaussian)(space.shape)


def _check_32_bits(space: spaces.Discrete | spaces.MultiDiscrete, where: str) -> None:
    low, high = (np.asarray(side, object) for side in bounds(space))
    if (low < -(2**31)).any() or (high >= 2**31).any():
        raise SpaceError("Discrete actions need more than 32 bits.", where, space).expected(
            f"actions from {-(2**31)} to {2**31 - 1}",
            "count the actions from 0, and let the environment add its offset",
        )


def check_box(space: spaces.Box, where: str, *, bounded: bool) -> None:
    """Raises SpaceError for a Box of integers: its actions would be rounded, which changes their log-probabilities.

    With `bounded` it is also raised for a Box without finite bounds, to which actions in (-1, 1) cannot be scaled.
    """
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError("The action space is a Box of integers.", where, space).expected(
            "a Box of floats, or Discrete or MultiDiscrete for integers",
            "declare MultiDiscrete(high - low + 1, start=low), or a float Box that the env rounds by itself",
        )
    if bounded and not space.is_bounded():
        raise SpaceError(
            "The Box has no finite bounds, to which actions in (-1, 1) are scaled.", where, space
        ).expected("finite low and high", "give the Box finite bounds, or wrap the env so that it has them")


def check_continuous(space: spaces.Space, where: str, *, discrete: str = "DQN or SAC") -> None:
    """Raises SpaceError unless the space is a bounded Box of floats; the error advises `discrete` for Discrete."""
    if not isinstance(space, spaces.Box):
        raise SpaceError("The actions are not continuous.", where, space).expected(
            "a Box of floats with finite bounds", f"use {discrete} for Discrete actions, PPO for other ones"
        )
    check_box(space, where, bounded=True)


def check_box_or_discrete(space: spaces.Space, where: str, *, composite: str) -> None:
    """Raises SpaceError unless the space is a bounded Box of floats or Discrete; the error advises `composite`."""
    if isinstance(space, spaces.Box):
        check_box(space, where, bounded=True)
    elif not isinstance(space, spaces.Discrete):
        raise SpaceError("The actions are neither continuous nor one discrete choice.", where, space).expected(
            "a Box of floats with finite bounds, or Discrete(n)",
            f"use {composite}, which takes composite actions, or flatten them",
        )


@dataclass(frozen=True)
class Composite(ActionDistribution):
    """Independent distributions of the parts of a Dict or Tuple space, possibly nested.

    Inputs, noise and mask of the parts are concatenated in the order of the space. A part without discrete choices has
    no columns in the mask.
    """

    parts: tuple[ActionDistribution, ...]
    keys: tuple[Any, ...] | None = None  # None for a Tuple

    @property
    def num_inputs(self) -> int:
        return sum(part.num_inputs for part in self.parts)

    @property
    def num_noise(self) -> int:
        return sum(part.num_noise for part in self.parts)

    @property
    def num_mask(self) -> int:
        return sum(part.num_mask for part in self.parts)

    def _sample(self, inputs: Array, noise: Array) -> Actions:
        rows = zip(self.parts, self._inputs(inputs), self._noise(noise), strict=True)
        return self._joined([part.sample(i, u) for part, i, u in rows])

    def _sample_and_logp(self, inputs: Array, noise: Array) -> tuple[Actions, Array]:
        rows = zip(self.parts, self._inputs(inputs), self._noise(noise), strict=True)
        actions, logps = zip(*(part.sample_and_logp(i, u) for part, i, u in rows), strict=True)
        return self._joined(actions), _total(logps)

    def _mode(self, inputs: Array) -> Actions:
        return self._joined([part.mode(i) for part, i in zip(self.parts, self._inputs(inputs), strict=True)])

    def _logp(self, inputs: Array, actions: Actions) -> Array:
        rows = zip(self.parts, self._inputs(inputs), self._separated(actions), strict=True)
        return _total([part.logp(i, a) for part, i, a in rows])

    def _entropy(self, inputs: Array) -> Array:
        return _total([part.entropy(i) for part, i in zip(self.parts, self._inputs(inputs), strict=True)])

    def _kl(self, inputs: Array, other_inputs: Array) -> Array:
        rows = zip(self.parts, self._inputs(inputs), self._inputs(other_inputs), strict=True)
        return _total([part.kl(i, o) for part, i, o in rows])

    def _mask(self, inputs: Array, action_mask: Array) -> Array:
        widths = [part.num_mask for part in self.parts]
        rows = zip(self.parts, self._inputs(inputs), self._split(action_mask, widths), strict=True)
        return self._concatenated([part.mask(i, m) if part.num_mask else i for part, i, m in rows])

    @abstractmethod
    def _split(self, columns: Array, widths: Sequence[int]) -> Sequence[Array]:
        """The parts [B, width] of columns [B, sum of the widths]."""

    @abstractmethod
    def _concatenated(self, parts: Sequence[Array]) -> Array:
        """[B, sum of the widths] of parts [B, width]."""

    def _inputs(self, inputs: Array) -> Sequence[Array]:
        return self._split(inputs, [part.num_inputs for part in self.parts])

    def _noise(self, noise: Array) -> Sequence[Array]:
        return self._split(noise, [part.num_noise for part in self.parts])

    def _joined(self, actions: Sequence[Actions]) -> Actions:
        return tuple(actions) if self.keys is None else dict(zip(self.keys, actions, strict=True))

    def _separated(self, actions: Actions) -> Sequence[Actions]:
        if self.keys is None and isinstance(actions, tuple | list) and len(actions) == len(self.parts):
            return actions
        if self.keys is not None and isinstance(actions, Mapping) and actions.keys() == set(self.keys):
            return [actions[key] for key in self.keys]
        got = f"{type(actions).__name__} {list(actions) if isinstance(actions, Mapping) else ''}".strip()
        expected = f"a tuple of {len(self.parts)} columns" if self.keys is None else f"a dict of {list(self.keys)}"
        raise ShapeError(
            "The actions do not have the structure of the action space.", f"{type(self).__name__}.logp", got
        ).expected(expected, "pass columns as rollax.core.spaces.stack returns them")


def _total(values: Sequence[Array]) -> Array:
    return sum(values[1:], start=values[0])
