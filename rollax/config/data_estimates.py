"""The fields of off-policy estimates at each evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from rollax.config.data_input import paths_as_text
from rollax.config.rules import ENABLED, FieldGroup, NotIn


class OffPolicyEstimationFields(FieldGroup):
    """Which estimates of the policies are made from recorded data at each evaluation; see `TrainingEstimates`."""

    requires = {
        "off_policy_estimation_methods": [{"off_policy_estimation_input": ENABLED}, {"input": ENABLED}],
        "off_policy_estimation_input": {"off_policy_estimation_methods": NotIn(())},
    }
    places = {("off_policy_estimation_methods", "off_policy_estimation_input"): ()}

    off_policy_estimation_methods: tuple[Literal["is", "pdis", "wis", "wpdis", "dm", "dr"], ...] = Field(
        default=(),
        description="methods by which each evaluation estimates the value of each policy from recorded data, such "
        "as ['wis', 'dm']; see [estimates.md](estimates.md)",
    )
    off_policy_estimation_input: Any = Field(
        default=None,
        description="data set to estimate from: a path, a list of them, a reader or a function, without weights; "
        "None: the data of input",
    )

    @field_validator("off_policy_estimation_input", mode="before")
    @classmethod
    def _estimation_input_as_text(cls, value: Any) -> Any:
        if isinstance(value, Mapping | bool | int | float) or value == "":
            raise ValueError("a path, a list of them, a reader or a function; all episodes count the same")
        return paths_as_text(value)
