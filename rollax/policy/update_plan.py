"""How a batch becomes gradient steps: plan, rows of each step, what a loss returns, and the result. Without JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import Columns
from rollax.core.numbers import is_whole
from rollax.errors import NonFiniteError, PolicyError

UpdatedTargets = Callable[[Columns, Columns, Any], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], Any]
"""Statistics of a minibatch -> [] whether the update ends before its gradient step."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps; PolicyError for sizes, epochs or intervals that are no integers from 1 on.

    `every` maps an attribute of the model to k: this part makes a step at every k-th gradient step. At other steps it
    does not change, nor does its state in the optimizer or beside the weights, such as batch statistics.
    """

    minibatch_size: int | None = None  # rows of one gradient step; None: the whole batch
    epochs: int = 1  # passes over each batch
    microbatch_size: int | None = None  # rows of one forward and backward pass, whose gradients are averaged; None: all
    updated_targets: UpdatedTargets | None = None  # None: there are no target parameters
    stops: StopsUpdate | None = None  # None: an update runs all its gradient steps
    every: Mapping[str, int] = field(default_factory=dict, hash=False)  # part -> k; others make every step

    def __post_init__(self) -> None:
        for part, interval in self.every.items():
            check_whole(interval, f"UpdatePlan, every[{part!r}]")
        for name in ("minibatch_size", "epochs", "microbatch_size"):
            value = getattr(self, name)
            if value is not None or name == "epochs":
                check_whole(value, f"UpdatePlan, {name}")


class UpdateResult(NamedTuple):
    """The result of an update."""

    statistics: dict[str, float]  # means over the steps of the last epoch that began, of those that have the statistic
    rows: dict[str, np.ndarray]  # name -> [capacity] statistics by row, from each row's last gradient step
    error: NonFiniteError | None  # the reason why the update stopped before the end of the plan


def check_whole(value: Any, where: str) -> None:
    """Raises PolicyError unless the value is an integer from 1 on."""
    if not (is_whole(value) and value >= 1):
        raise PolicyError("The value is not an integer of at least 1.", where=where, got=value)
