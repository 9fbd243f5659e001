"""Losses and statistics as pure JAX functions of arrays and a mask."""

from __future__ import annotations

from rollax.ops.masked import check_same_shape, masked_mean
from rollax.ops.policy_gradient import adapted_kl_coeff, clipped_surrogate, policy_gradient_loss, truncated_reference
from rollax.ops.values import explained_variance, value_loss
from rollax.ops.vtrace import vtrace

__all__ = [
    "adapted_kl_coeff",
    "check_same_shape",
    "clipped_surrogate",
    "explained_variance",
    "masked_mean",
    "policy_gradient_loss",
    "truncated_reference",
    "value_loss",
    "vtrace",
]
