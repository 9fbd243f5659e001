"""The fields of off-policy estimates at each evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from rollax.config.hooks import ConfigHooks
from rollax.config.rules import ENABLED, NotIn
from rollax.offline.sources import paths_as_text

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.offline.estimators.in_training import TrainingEstimates


class OffPolicyEstimationFields(ConfigHooks):
    """Which estimates of the policies are made from recorded data at each evaluation; see `TrainingEstimates`."""

    requires = {
        "off_policy_estimation_methods": [{"off_policy_estimation_input": ENABLED}, {"input": ENABLED}],
        "off_policy_estimation_input": {"off_policy_estimation_methods": NotIn(())},
    }
    places = {("off_policy_estimation_methods", "off_policy_estimation_input"): ()}
    passed_again = ("off_policy_estimation_input",)

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

    def estimates(self, trainer: Trainer) -> TrainingEstimates | None:
        from rollax.offline.from_data import estimates_of

        return estimates_of(trainer)
