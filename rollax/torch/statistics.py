"""The named statistics of a loss: numbers, or columns with one number for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rollax.errors import PolicyError, ShapeError
from rollax.policy.checks import misshapen_statistic
from rollax.torch.weights import as_tensor


def statistics_of(found: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """The statistics of a loss as tensors; PolicyError for a value that cannot be converted to a tensor."""
    statistics = {}
    for name, value in found.items():
        try:
            statistics[name] = as_tensor(value, device)
        except (TypeError, ValueError, RuntimeError) as error:
            got = f"{type(value).__name__}: {value!r}"[:200]
            raise PolicyError("A statistic is not a number.", f"statistic {name!r} of the loss", got).expected(
                "a tensor, an array or a number", "return a number, or leave it out of this minibatch"
            ) from error
    return statistics


def of_microbatches(name: str, values: Mapping[int, Tensor], counts: Tensor | None, parts: int) -> Tensor:
    """The statistic over all microbatches that have it: the weighted mean of numbers, or the rows of columns, joined.

    Returns a copy, because a statistic may be a parameter, which the step changes in place. Numbers become floats.

    Args:
        values: number of the microbatch -> its statistic.
        counts: [parts] the weights of the microbatches; None for a single microbatch.
    Raises:
        ShapeError: a column that some microbatches lack.
    """
    first = next(iter(values.values()))
    if not first.ndim:
        if counts is None:
            return first * 1.0
        weights = counts[list(values)].to(first.device)
        return (torch.stack([*values.values()]) * weights).sum() / weights.sum()
    if len(values) < parts:
        raise ShapeError(
            "Some microbatches lack a statistic by row.",
            f"statistic {name!r} of the loss",
            f"{len(values)} of {parts} microbatches",
        ).expected("one number for each row of the minibatch", "return it for every microbatch, or its mean")
    return torch.cat([*values.values()])


def of_valid_rows(name: str, column: Tensor, mask: Tensor) -> Tensor:
    """The statistics of the valid rows, which are first; ShapeError unless `column` has the shape of `mask`."""
    if column.shape != mask.shape:
        raise misshapen_statistic(name, tuple(column.shape), tuple(mask.shape))
    return column[: int(mask.count_nonzero())]
