"""From an action space to its distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.errors import SpaceError
from rollax.models.distributions.base import ActionDistribution
from rollax.models.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian
from rollax.models.distributions.joint import Joint
from rollax.spaces import check_space, path_text


def make_distribution(action_space: spaces.Space, *, squash: bool = False) -> ActionDistribution:
    """The distribution over the actions of a space.

    Discrete gives Categorical, MultiDiscrete MultiCategorical, MultiBinary Bernoulli, a float Box of any shape
    DiagGaussian or SquashedGaussian, Dict and Tuple a Joint of those. Actions come as columns of the space (see
    `rollax.spaces`), in JAX's 32-bit types; those of a Box are not mapped to its bounds.

    Args:
        action_space: any nesting of the spaces above.
        squash: every Box becomes a SquashedGaussian, with actions in (-1, 1) whatever the bounds.
    Raises:
        SpaceError: a missing, unsupported or empty space, a Box of integers (its values would have to be rounded, and
            their log-probabilities would not be those of what was done), or `squash` for a Box without finite bounds.
    """
    check_space(action_space, "action_space")
    return _make(action_space, squash, "action_space")


def _make(space: Any, squash: bool, where: str) -> ActionDistribution:
    if isinstance(space, spaces.Dict):
        parts = tuple(_make(part, squash, where + path_text((key,))) for key, part in space.spaces.items())
        return Joint(parts, tuple(space.spaces))
    if isinstance(space, spaces.Tuple):
        return Joint(tuple(_make(part, squash, where + path_text((i,))) for i, part in enumerate(space.spaces)))
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (tuple(int(i) for i in values.ravel()) for values in (space.nvec, space.start))
        return MultiCategorical(nvec, start, space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(tuple(int(size) for size in space.shape))
    check_box(space, where, bounded=squash)
    return (SquashedGaussian if squash else DiagGaussian)(space.shape)


def check_box(space: spaces.Box, where: str, *, bounded: bool) -> None:
    """Refuses a Box of integers, whose actions would have to be rounded.

    Args:
        space: the action space, or a part of it.
        where: which part.
        bounded: refuse one without finite bounds too: its actions are to be made in (-1, 1).
    Raises:
        SpaceError: it is one of those.
    """
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError(
            "A Box of integers as an action space.",
            where=where,
            got=space,
            expected="a Box of floats, or Discrete or MultiDiscrete for integers",
            fix="declare MultiDiscrete(high - low + 1, start=low), or a float Box that the env rounds by itself",
        )
    if bounded and not space.is_bounded():
        raise SpaceError(
            "A Box without finite bounds for actions that are made in (-1, 1).",
            where=where,
            got=space,
            expected="finite low and high",
            fix="give the Box finite bounds, or wrap the env so that it has them",
        )
