"""Errors for numbers that are not finite, in acting and in learning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rollax.errors import NonFiniteError


def check_finite(numbers: np.ndarray, policy_id: str, timestep: int) -> None:
    """Raises NonFiniteError, with the row, if a number of the first fetched column [N, ...] is not finite."""
    # A finite sum implies finite elements; one test is cheaper than testing each.
    if not math.isfinite(numbers.sum()):
        # Row 0 if every number is finite and only their sum is not.
        row = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)))
        raise NonFiniteError(
            "The model's outputs are not finite: no action can be chosen.",
            where=f"policy {policy_id!r}, row {row} of {len(numbers)}, at timestep {timestep}",
            got="a NaN or infinite log-probability, value or action",
            expected="finite outputs",
            fix="look for NaN in the weights, or for very large observations; observation_filter="
            "'MeanStdFilter' standardizes them",
        )


def not_finite(where: str, step: int, tensor: str, columns: Sequence[str] = ()) -> NonFiniteError:
    """The error of an update whose step `step` met `tensor`, and `columns` of the batch, that are not finite."""
    return NonFiniteError(
        "Learning stopped: a loss, gradient or new weight is not finite. The weights are those before this step.",
        f"{where}, gradient step {step}: {tensor}",
        "NaN, infinity, or numbers whose sum of squares overflows"
        + (f"; the batch's columns {list(columns)} are not finite either" if columns else ""),
        expected="finite numbers",
    ).fix("lower lr, set grad_clip, normalize observations (observation_filter='MeanStdFilter') or clip rewards")
