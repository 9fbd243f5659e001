"""What the `loss` of a policy returns, in JAX and in PyTorch: a number and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.errors import PolicyError, ShapeError


def checked_loss(result: Any, algorithm_class: type, array: type) -> tuple[Any, Mapping[str, Any]]:
    """What `loss` returned; PolicyError unless it is a number, as an array of this class, and statistics."""
    fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    if fits and isinstance(result[0], array) and result[0].ndim == 0:
        return result
    parts = result if isinstance(result, tuple) else (result,)
    name = array.__name__.rpartition(".")[2]  # JAX writes the module before it
    raise PolicyError(
        "The loss function does not return a number and a dict of statistics.",
        f"algorithm {algorithm_class.__name__}, loss",
        ", ".join(f"{name} {list(p.shape)}" if isinstance(p, array) else type(p).__name__ for p in parts),
        expected=f"({name} [], {{name: statistic}})",
    ).fix("return a mean over the valid rows, such as masked_mean(errors, mask), and a dict, which may be empty")


def td_error_of(statistics: Mapping[str, Any], rows: int, where: str) -> Any:
    """The statistic `td_error` [rows]; PolicyError for a loss without it, ShapeError for another shape."""
    if SampleBatch.TD_ERROR not in statistics:
        raise PolicyError("The loss returns no error for each row.", where, sorted(statistics)).expected(
            f"the statistic {SampleBatch.TD_ERROR!r} [N]",
            "return it from the loss: statistics[SampleBatch.TD_ERROR] = errors",
        )
    errors = statistics[SampleBatch.TD_ERROR]
    shape = tuple(np.shape(errors))
    if shape != (rows,):
        raise misshapen_statistic(SampleBatch.TD_ERROR, shape, (rows,))
    return errors


def misshapen_statistic(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> ShapeError:
    """The error of a statistic that is neither a number nor a column with one number for each row."""
    return ShapeError("A statistic by row has the wrong shape.", f"statistic {name!r} of the loss", got).expected(
        f"{expected}: one number for each row of the minibatch, with memory for each sequence",
        "return its mean, or with memory one number for each sequence",
    )
