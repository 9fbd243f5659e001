"""The distribution of an action space in JAX; `Joint`, the distribution over a Dict or Tuple space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium import spaces
from jax import lax
from jaxtyping import Array

from rollax.models.distributions.base import ActionDistribution
from rollax.models.distributions.composite import Composite, Kinds, distribution_of
from rollax.models.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian


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
        SpaceError: the space is missing, unsupported or empty, or has a Box of integers, or with `squash` a Box without
            finite bounds.
    """
    return distribution_of(action_space, _KINDS, squash=squash)


@dataclass(frozen=True)
class Joint(Composite):
    """`Composite` in JAX."""

    def _split(self, columns: Array, widths: Sequence[int]) -> Sequence[Array]:
        return lax.split(columns, widths, axis=1)

    def _concatenated(self, parts: Sequence[Array]) -> Array:
        return lax.concatenate(parts, 1)


_KINDS = Kinds(Categorical, MultiCategorical, Bernoulli, DiagGaussian, SquashedGaussian, Joint)
