"""Types of config fields that several configs use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationInfo,
)

from rollax.core.importing import StoredCode
from rollax.core.schedules import Schedule


def _checked_points(points: tuple[tuple[int, float], ...], info: ValidationInfo) -> tuple[tuple[int, float], ...]:
    Schedule(points, where=f"config key '{info.field_name}'")
    return points


def _checked_class(value: Any) -> Any:
    if isinstance(value, type | StoredCode):
        return value
    raise ValueError("a class (not an instance of it)")


def _checked_classes(value: Any) -> Any:
    classes = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(one, type | StoredCode) for one in classes):
        raise ValueError("a class (not an instance of it), or a list of classes")
    return classes if isinstance(value, list | tuple) else value


SchedulePoints = Annotated[tuple[tuple[NonNegativeInt, NonNegativeFloat], ...], AfterValidator(_checked_points)]
"""[[timestep, value], ...], linear in between, constant outside. `x_schedule` replaces the field `x`."""

Probability = Annotated[float, Field(ge=0, le=1)]
ProbabilityPoints = Annotated[tuple[tuple[NonNegativeInt, Probability], ...], AfterValidator(_checked_points)]
"""The same where values are probabilities."""

OwnClass = Annotated[type | InstanceOf[StoredCode], BeforeValidator(_checked_class)]
"""A class of the user, or its path in a checkpoint whose code is not imported."""

OwnClasses = Annotated[
    type | InstanceOf[StoredCode] | tuple[type | InstanceOf[StoredCode], ...], BeforeValidator(_checked_classes)
]
"""One such class, or several."""

Lambda = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        validation_alias="lambda",
        serialization_alias="lambda",
        description="λ of generalized advantage estimation: 0 relies on the value function, 1 on the sampled rewards",
    ),
]
"""The type of a field `lambda_`, whose key is `lambda`."""
