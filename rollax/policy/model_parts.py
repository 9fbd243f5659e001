"""Parts of a model, its attributes: learning rates, gradient steps and targets of each. Without JAX."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rollax.errors import PolicyError
from rollax.policy.update_plan import UpdatedTargets


def check_every(parts: Collection[str], every: Mapping[str, int], rates: Any, where: str) -> None:
    """Raises PolicyError for an interval of what is not a part of the model with a learning rate of its own.

    Args:
        parts: the model's attributes with trained parameters.
        every: of the plan.
        rates: a number, or one for each part.
        where: the algorithm, for errors.
    """
    own = set(parts) & rates.keys() if isinstance(rates, Mapping) else set()
    if unknown := sorted(every.keys() - own):
        raise PolicyError(
            "The plan has intervals for parts of the model that have no optimizer of their own.",
            where=f"{where}, make_plan, UpdatePlan.every",
            got=unknown,
            expected=f"some of {sorted(own)}, the attributes of the model that have a learning rate of their own",
            fix="return a learning rate for each part of the model from learning_rates",
        )


def due_parts(parts: Collection[str], every: Mapping[str, int], updates_before: int) -> frozenset[str]:
    """The parts of the model that make the gradient step after this number of others."""
    return frozenset(part for part in parts if (updates_before + 1) % every.get(part, 1) == 0)


def check_rates(parts: Collection[str], rates: Any, where: str) -> None:
    """Raises PolicyError for attributes of a model with trained parameters, but without a learning rate.

    Args:
        parts: the attributes.
        rates: a number, or one for each attribute.
        where: the algorithm, for errors.
    """
    if isinstance(rates, Mapping) and (left := sorted(set(parts) - rates.keys())):
        raise PolicyError(
            "Parts of the model have no learning rate.",
            where=f"{where}, make_model and learning_rates",
            got=f"learning rates of {sorted(rates)}, and a model with trained parameters in {left}",
            expected="one learning rate for each attribute of the model that has trained parameters",
            fix=f"return a model with the attributes {sorted(rates)} from make_model, or override learning_rates",
        )


def part_of(name: str) -> str:
    """The attribute of the model that contains the variable of this name."""
    return name.partition(".")[0]


def check_parts(owners: Mapping[str, Collection[str]], targets: UpdatedTargets | None, where: str) -> None:
    """Refuses parts of `polyak_average` that share parameters with another attribute of the model.

    Args:
        owners: name of a parameter -> all attributes of the model that contain it; the name begins with one of them.
        targets: of the plan.
        where: the algorithm, for errors.
    Raises:
        PolicyError: such a parameter, whose target would be constant.
    """
    averaged = getattr(targets, "parts", frozenset())
    for name, attributes in owners.items():
        own = part_of(name)
        if own not in averaged and (others := averaged.intersection(attributes)):
            raise PolicyError(
                "Some target parameters would never change: another attribute of the model owns them.",
                where=f"{where}, make_plan",
                got=f"{name}, which is in {sorted(others)} too",
                expected="polyak_average with all attributes that share parameters",
                fix=f"pass all of them: polyak_average(tau, {tuple(sorted({own, *averaged}))})",
            )
