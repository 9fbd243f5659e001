"""Types of config fields, and the fields that hold code, in which the caller may write import paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationInfo,
)

from rollax.core.extensions import contributed
from rollax.core.importing import StoredCode, named_by_caller
from rollax.core.schedules import Schedule
from rollax.core.wrapper_list import checked_wrappers, wrappers_by_caller


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


EnvWrappers = Annotated[tuple[Any, ...], BeforeValidator(checked_wrappers)]
"""Environment wrappers: classes, functions or their paths, each alone or in a pair with its keyword arguments."""

SchedulePoints = Annotated[tuple[tuple[NonNegativeInt, NonNegativeFloat], ...], AfterValidator(_checked_points)]
"""[[timestep, value], ...], linear in between, constant outside. `x_schedule` replaces the field `x`."""

Probability = Annotated[float, Field(ge=0, le=1)]
ProbabilityPoints = Annotated[tuple[tuple[NonNegativeInt, Probability], ...], AfterValidator(_checked_points)]
"""As `SchedulePoints`, with probabilities as values."""

OwnClass = Annotated[type | InstanceOf[StoredCode], BeforeValidator(_checked_class)]
"""A class of the user, or a `StoredCode` in the place of one that is not imported."""

OwnClasses = Annotated[
    type | InstanceOf[StoredCode] | tuple[type | InstanceOf[StoredCode], ...], BeforeValidator(_checked_classes)
]
"""One class as for `OwnClass`, or several."""

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

NAMES_IN_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "model": ("custom_model",),
    "env_config": ("spaces_of", "env_id"),  # of PolicyServerEnv, and of Shimmy's environments of the old Gym
    **contributed("NAMES_IN_SECTIONS"),
}
"""Section of a config -> its keys that hold the path of code, or Gymnasium's "module:id", as strings."""
IMPORTED_WHERE_USED = {"env", *(name for names in NAMES_IN_SECTIONS.values() for name in names)}
"""Keys whose code is imported where it is used, and not where the config is read."""


def written_by_caller(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of a config that the caller wrote; the paths in its fields for code become `ImportPath`."""
    return {key: _written_by_caller(key, value) for key, value in values.items()}


def _written_by_caller(key: str, value: Any) -> Any:
    if key == "env":
        return named_by_caller(value)
    if key == "env_wrappers":
        return wrappers_by_caller(value)
    if key in NAMES_IN_SECTIONS and isinstance(value, Mapping | BaseModel):
        held = value if isinstance(value, Mapping) else vars(value)
        paths = {name: held[name] for name in NAMES_IN_SECTIONS[key] if isinstance(held.get(name), str)}
        named = {name: named_by_caller(path) for name, path in paths.items()}
        if not named:
            return value
        return value.model_copy(update=named) if isinstance(value, BaseModel) else {**value, **named}
    if key == "evaluation_config" and isinstance(value, Mapping):
        return written_by_caller(value)
    if key == "multiagent" and isinstance(value, Mapping) and isinstance(value.get("policies"), Mapping):
        return {**value, "policies": {name: _written_spec(spec) for name, spec in value["policies"].items()}}
    return value


def _written_spec(spec: Any) -> Any:
    if not (isinstance(spec, tuple) and len(spec) == 4 and isinstance(spec[3], Mapping)):
        return spec
    make = getattr(type(spec), "_make", tuple)  # of a named tuple
    return make((*spec[:3], written_by_caller(spec[3])))
