"""`UpdatePlan`: how a batch becomes gradient steps, and updates of target parameters. It imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollax.errors import PolicyError

Columns = Mapping[str, Any]
UpdatedTargets = Callable[[Columns, Columns, Any], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], Any]
"""Statistics of a minibatch -> [] whether the update ends before its gradient step."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps."""

    minibatch_size: int | None = None  # rows of one gradient step; None: the whole batch
    epochs: int = 1  # passes over each batch
    microbatch_size: int | None = None  # rows of one forward and backward pass, whose gradients are averaged; None: all
    targets: UpdatedTargets | None = None  # None: there are no target parameters
    stops: StopsUpdate | None = None  # None: an update runs all its gradient steps


def periodic_copy(interval: int) -> UpdatedTargets:
    """Targets that become a copy of the parameters every `interval` gradient steps."""

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        due = num_updates % interval == 0
        return {name: _chosen(due, params[name], target) for name, target in targets.items()}

    return updated


def polyak_average(tau: float, parts: Sequence[str], *, interval: int = 1) -> UpdatedTargets:
    """Targets that become (1 - τ) target + τ parameter every `interval` gradient steps.

    `parts` are attributes of the model; other targets are constant. An update raises PolicyError if the model has no
    parameters in one of them.
    """

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        names = [name for name in targets if part_of(name) in parts]
        if unknown := set(parts).difference(map(part_of, names)):
            raise PolicyError(
                "Target parameters that would never move: parts that the model does not have.",
                where="polyak_average, argument parts",
                got=sorted(unknown),
                expected=f"some of {sorted(set(map(part_of, targets)))}, the model's attributes with parameters",
                fix="name the attributes whose targets are averages",
            )
        moved = {name: tau * params[name] + (1.0 - tau) * targets[name] for name in names}
        if interval > 1:
            due = num_updates % interval == 0
            moved = {name: _chosen(due, moved[name], targets[name]) for name in names}
        return {**targets, **moved}

    return updated


def part_of(name: str) -> str:
    """The attribute of the model that contains the variable of this name."""
    return name.partition(".")[0]


def _chosen(due: Any, newer: Any, older: Any) -> Any:
    if isinstance(due, bool):
        return newer if due else older
    import jax.numpy as jnp  # `due` is traced

    return jnp.where(due, newer, older)
