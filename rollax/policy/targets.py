"""Updates of target parameters: copies at intervals, or Polyak averages. JAX is imported only in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollax.batch import Columns
from rollax.errors import PolicyError
from rollax.policy.update_plan import UpdatedTargets, check_whole, part_of


def periodic_copy(interval: int) -> UpdatedTargets:
    """Returns a function that copies the parameters to the targets every `interval` gradient steps, at least 1."""
    check_whole(interval, "periodic_copy, interval")
    interval = min(interval, 2**31 - 1)  # gradient steps are counted in int32

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        due = num_updates % interval == 0
        return {name: _select(due, params[name], target) for name, target in targets.items()}

    return updated


def polyak_average(
    tau: float, parts: Sequence[str], *, interval: int = 1, projection: Callable[[Columns], Columns] | None = None
) -> UpdatedTargets:
    """Returns a function that sets targets to (1 - τ) target + τ parameter every `interval` gradient steps.

    Args:
        tau: τ in [0, 1].
        parts: the attributes of the model whose targets are averaged; all other targets are constant.
        interval: gradient steps between updates of the targets, at least 1.
        projection: maps name -> average to values that fulfil a constraint of the parameters that averaging breaks,
            such as a unit norm.
    Raises:
        PolicyError: τ or `interval` is out of range. It is raised later, by the constructor of the policy, if the model
            shares parameters of a part with another attribute, and by an update if a part has no parameters.
    """
    check_whole(interval, "polyak_average, interval")
    if not 0 <= tau <= 1:
        raise PolicyError("τ is out of range.", where="polyak_average, tau", got=tau, expected="a number from 0 to 1")

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        names = [name for name in targets if part_of(name) in parts]
        if unknown := set(parts).difference(map(part_of, names)):
            raise PolicyError(
                "The model has no target parameters in some of the given parts.",
                where="polyak_average, argument parts",
                got=sorted(unknown),
                expected=f"some of {sorted(set(map(part_of, targets)))}, the model's attributes with parameters",
                fix="pass the names of the model's attributes whose targets are averages",
            )
        moved = {name: tau * params[name] + (1.0 - tau) * targets[name] for name in names}
        if projection is not None:
            moved = dict(projection(moved))
        if interval > 1:
            due = num_updates % interval == 0
            moved = {name: _select(due, moved[name], targets[name]) for name in names}
        return {**targets, **moved}

    updated.parts = frozenset(parts)  # type: ignore[attr-defined]  for `check_parts`
    return updated


def _select(due: Any, newer: Any, older: Any) -> Any:
    if isinstance(due, bool):
        return newer if due else older
    import jax.numpy as jnp  # `due` is traced

    return jnp.where(due, newer, older)
