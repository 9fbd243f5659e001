"""Target parameters after gradient steps: copies at intervals, or averages (Polyak). Without JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollax.batch import Columns
from rollax.errors import PolicyError
from rollax.policy.update_plan import UpdatedTargets, check_whole, part_of


def periodic_copy(interval: int) -> UpdatedTargets:
    """Targets that become a copy of the parameters every `interval` gradient steps, a whole number from 1 on."""
    check_whole(interval, "periodic_copy, interval")

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        due = num_updates % interval == 0
        return {name: _select(due, params[name], target) for name, target in targets.items()}

    return updated


def polyak_average(
    tau: float, parts: Sequence[str], *, interval: int = 1, projection: Callable[[Columns], Columns] | None = None
) -> UpdatedTargets:
    """Targets that become (1 - τ) target + τ parameter every `interval` gradient steps.

    `parts` are attributes of the model; other targets are constant. If parameters fulfil a constraint that averages do
    not, such as a norm, `projection` makes the average fulfil it, a function of variables by name. PolicyError is
    raised for τ outside 0 to 1, by the constructor of a policy whose model shares parameters of a part with another
    attribute, and by an update if the model has no parameters in a part.
    """
    check_whole(interval, "polyak_average, interval")
    if not 0 <= tau <= 1:
        raise PolicyError("τ is out of range.", where="polyak_average, tau", got=tau, expected="a number from 0 to 1")

    def updated(targets: Columns, params: Columns, num_updates: Any) -> Columns:
        names = [name for name in targets if part_of(name) in parts]
        if unknown := set(parts).difference(map(part_of, names)):
            raise PolicyError(
                "Some target parameters would never change: the model does not have these parts.",
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
