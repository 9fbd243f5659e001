"""Action distributions: pure JAX functions of a flat `dist_inputs` array, built once from an action space."""

from __future__ import annotations

from rollax.models.distributions.base import MASKED_LOGIT, ActionDistribution, Actions
from rollax.models.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rollax.models.distributions.factory import Joint, make_distribution
from rollax.models.distributions.gaussian import DiagGaussian, SquashedGaussian

__all__ = [
    "MASKED_LOGIT",
    "ActionDistribution",
    "Actions",
    "Bernoulli",
    "Categorical",
    "DiagGaussian",
    "Joint",
    "MultiCategorical",
    "SquashedGaussian",
    "make_distribution",
]
