"""The distribution of an action space, and the checks of action spaces. This module does not import JAX.

The module of a distribution is imported for the first action space of its kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.core.spaces import bounds, check_space, path_text
from rollax.errors import SpaceError
from rollax.models.distributions import ActionDistribution

ClassOf = Callable[[str], Callable[..., ActionDistribution]]
"""The name of a kind of distribution -> its class in a library of arrays."""

_MODULE_IN_JAX = {
    "Categorical": "discrete",
    "MultiCategorical": "discrete",
    "Bernoulli": "discrete",
    "DiagGaussian": "gaussian",
    "SquashedGaussian": "gaussian",
    "Joint": "joint",
}
"""Kind of distribution, the name of its class -> its module in this package."""


def make_distribution(action_space: spaces.Space, *, squash: bool = False) -> ActionDistribution:
    """Returns the distribution over the actions of a space.

    | space | distribution |
    |---|---|
    | Discrete | Categorical |
    | MultiDiscrete | MultiCategorical |
    | MultiBinary | Bernoulli |
    | Box of floats | DiagGaussian, or SquashedGaussian with `squash` |
    | Dict, Tuple | Joint, of the distributions of the parts |

    Actions are columns of the space (see `rollax.core.spaces`), in JAX's 32-bit types; actions of a Box are not mapped
    to its bounds.

    Args:
        squash: whether every Box becomes a SquashedGaussian, with actions in (-1, 1) for any bounds.
    Raises:
        SpaceError: the space is missing, unsupported or empty, or has discrete actions beyond 32 bits, a Box of
            integers, or with `squash` a Box without finite bounds.
    """
    return distribution_of(action_space, _class_in_jax, squash=squash)


def _class_in_jax(kind: str) -> Callable[..., ActionDistribution]:
    return getattr(importlib.import_module(f"{__package__}.{_MODULE_IN_JAX[kind]}"), kind)


def distribution_of(action_space: spaces.Space, class_of: ClassOf, *, squash: bool) -> ActionDistribution:
    """Returns the distribution over the actions of a space, with the classes of any library of arrays.

    See `make_distribution`.
    """
    check_space(action_space, "action_space")
    return _make(action_space, class_of, squash, "action_space")


def _make(space: Any, class_of: ClassOf, squash: bool, where: str) -> ActionDistribution:
    if isinstance(space, spaces.Dict):
        parts = (_make(part, class_of, squash, where + path_text((key,))) for key, part in space.spaces.items())
        return class_of("Joint")(tuple(parts), tuple(space.spaces))
    if isinstance(space, spaces.Tuple):
        numbered = enumerate(space.spaces)
        return class_of("Joint")(tuple(_make(part, class_of, squash, where + path_text((i,))) for i, part in numbered))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        _check_32_bits(space, where)
    if isinstance(space, spaces.Discrete):
        return class_of("Categorical")(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (tuple(int(i) for i in values.ravel()) for values in (space.nvec, space.start))
        return class_of("MultiCategorical")(nvec, start, space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return class_of("Bernoulli")(tuple(int(size) for size in space.shape))
    check_box(space, where, bounded=squash)
    return class_of("SquashedGaussian" if squash else "DiagGaussian")(space.shape)


def _check_32_bits(space: spaces.Discrete | spaces.MultiDiscrete, where: str) -> None:
    low, high = (np.asarray(side, object) for side in bounds(space))
    if (low < -(2**31)).any() or (high >= 2**31).any():
        raise SpaceError("Discrete actions need more than 32 bits.", where, space).expected(
            f"actions from {-(2**31)} to {2**31 - 1}",
            "count the actions from 0, and let the environment add its offset",
        )


def check_box(space: spaces.Box, where: str, *, bounded: bool) -> None:
    """Raises SpaceError for a Box of integers: its actions would be rounded, which changes their log-probabilities.

    With `bounded`, a Box without finite bounds raises SpaceError too: actions in (-1, 1) cannot be scaled to it.
    """
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError("The action space is a Box of integers.", where, space).expected(
            "a Box of floats, or Discrete or MultiDiscrete for integers",
            "declare MultiDiscrete(high - low + 1, start=low), or a float Box that the env rounds by itself",
        )
    if bounded and not space.is_bounded():
        raise SpaceError("Actions in (-1, 1) cannot be scaled to a Box without finite bounds.", where, space).expected(
            "finite low and high", "give the Box finite bounds, or wrap the env so that it has them"
        )


def check_continuous(space: spaces.Space, where: str, *, discrete: str = "DQN or SAC") -> None:
    """Raises SpaceError unless the space is a bounded Box of floats; the error recommends `discrete` for Discrete."""
    if not isinstance(space, spaces.Box):
        raise SpaceError("The actions are not continuous.", where, space).expected(
            "a Box of floats with finite bounds", f"use {discrete} for Discrete actions, PPO for other ones"
        )
    check_box(space, where, bounded=True)


def check_box_or_discrete(space: spaces.Space, where: str, *, composite: str) -> None:
    """Raises SpaceError unless the space is a bounded Box of floats or Discrete; the error recommends `composite`."""
    if isinstance(space, spaces.Box):
        check_box(space, where, bounded=True)
    elif not isinstance(space, spaces.Discrete):
        raise SpaceError("The actions are neither continuous nor one discrete choice.", where, space).expected(
            "a Box of floats with finite bounds, or Discrete(n)",
            f"use {composite}, which takes composite actions, or flatten them",
        )
